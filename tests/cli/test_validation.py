import json
from pathlib import Path

import pytest

from autoscaler.cli import main
from autoscaler.simulation.loads import RECORDED


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Half an hour instead of the recorded loads."""
    for name in ("ads18h", "cars18h"):
        lines = "".join(f"{at},{12_000 + 3 * at}\n" for at in range(0, 1805, 5))
        (tmp_path / RECORDED[name].file).write_text(f"t_seconds,value\n{lines}")
    return tmp_path


def benchmark(*arguments: str | Path) -> int:
    return main(["benchmark", "--validate", *map(str, arguments)])


def test_what_was_measured_stands_beside_what_is_simulated(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark("--traces", traces, "--seeds", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("ads18h"))
    assert "61%" in row
    assert "1.1%" in row
    assert any(line.startswith("checkpoints every 10 s") for line in lines)


def test_the_deviation_is_that_of_what_is_printed(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark("--traces", traces, "--seeds", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["load"] for each in found} == {"ads18h", "cars18h"}
    for each in found:
        measured, simulated, deviation = each["measured"], each["simulated"], each["deviation"]
        assert measured["workers"] * (1 + deviation["workers"]) == pytest.approx(simulated["workers"])
        assert measured["late"] + deviation["late"] == pytest.approx(simulated["late"])
        assert 0 < simulated["workers"] <= 1


def test_without_traces_it_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AUTOSCALER_TRACES", raising=False)
    assert benchmark() == 2
    assert "use --traces DIR, or set AUTOSCALER_TRACES" in capsys.readouterr().err
    assert benchmark("--traces", tmp_path) == 2
    assert "demeter_ads_5s_18h.csv: cannot be read" in capsys.readouterr().err
