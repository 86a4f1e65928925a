"""The output of `check --online` for plug-ins with a doctor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.cli import check
from autoscaler.config.model import Cluster, Config, DaemonSpec, Metric
from autoscaler.core.model import ClusterSpec, EngineStatus, JobState, Limits
from autoscaler.ports import Finding, NotYetError, Severity, UnavailableError
from autoscaler.testing.fakes import Fake, FakeEngine, FakeQuery, FakeSource, FakeTarget

WAIT = Finding(
    Severity.ERROR,
    "spark.locality.wait",
    "it is 3s, and the query keeps state, so new workers get no work",
    "every scale-up is paid for and not used " * 5,
    "spark.locality.wait=0s",
)
SMALL = Finding(Severity.WARNING, "partitions", "fewer than slots", "idle slots", "more partitions")


class Examined(FakeEngine):
    """An engine with a doctor."""

    def __init__(self, *findings: Finding, error: Exception | None = None) -> None:
        super().__init__()
        self.findings = findings
        self.error = error

    async def diagnose(self) -> Sequence[Finding]:
        if self.error is not None:
            raise self.error
        return self.findings


def use(
    monkeypatch: pytest.MonkeyPatch,
    engine: FakeEngine,
    source: FakeSource | None = None,
    names: Sequence[str] = (),
) -> None:
    """Clusters `names`, each with its own engine of this kind; otherwise two that share one."""
    second = timedelta(seconds=1)
    plugin = Fake(engine)
    clusters = {
        name: Cluster(
            spec=ClusterSpec(name=name, limits=Limits(1, 5), policies=(), metrics=("lag",), engine=True),
            target=Fake(FakeTarget(remarks=("be careful",))),
            engine=Fake(engine) if names else plugin,
            metrics={"lag": Metric("source", FakeQuery("lag"))},
            interval=2 * second,
            timeout=second,
        )
        for name in (names or ("a", "b"))
    }
    plugged = Fake(source or FakeSource({"lag": 7.0}))
    config = Config(
        path=Path("config.yaml"),
        daemon=DaemonSpec(directory=Path("nowhere")),
        sources={"source": plugged},
        clusters=clusters,
    )
    monkeypatch.setattr(check, "load_live", lambda _: config)


def test_findings_are_reported_once_with_cost_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Examined(WAIT, SMALL))
    assert cli.main(["check", "--online", "config.yaml"]) == 1  # one of them is an error
    out = capsys.readouterr().out
    assert out.count("ERROR: spark.locality.wait (engine of cluster a)") == 1
    assert "  problem: it is 3s, and the query keeps state" in out
    assert "  remedy:  spark.locality.wait=0s\n" in out
    assert "WARNING: partitions" in out
    assert "be careful" in out
    assert out.endswith("2 clusters, 0 readings failed, 2 findings.\n")
    assert cli.main(["check", "--online", "config.yaml", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [found["severity"] for found in answer["examined"][0]["findings"]] == ["error", "warning"]


def test_an_equal_finding_of_several_plugins_is_shown_once_with_their_clusters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("a", "b", "c", "d", "e", "f", "g")
    use(monkeypatch, Examined(WAIT), names=names)
    assert cli.main(["check", "--online", "config.yaml"]) == 1
    out = capsys.readouterr().out
    assert out.count("ERROR: spark.locality.wait") == 1
    assert "ERROR: spark.locality.wait (engine of clusters a, b, c, d, e and 2 more)" in out
    assert out.endswith("7 clusters, 0 readings failed, 1 finding.\n")
    use(monkeypatch, Examined(error=UnavailableError("the driver does not answer")), names=names[:2])
    cli.main(["check", "--online", "config.yaml"])
    out = capsys.readouterr().out
    assert "engine of clusters a, b could not be examined: the driver does not answer" in out


def test_warnings_alone_are_not_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, Examined(SMALL))
    assert cli.main(["check", "--online", "config.yaml"]) == 0
    assert "WARNING: partitions" in capsys.readouterr().out


def test_a_doctor_that_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, Examined(error=UnavailableError("the driver does not answer")))
    assert cli.main(["check", "--online", "config.yaml"]) == 1
    assert "engine of cluster a could not be examined: the driver does not answer" in capsys.readouterr().out


def test_a_maximum_beyond_the_usable_size_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Examined()
    engine.status = EngineStatus(job=JobState.RUNNING, max_parallelism=3)
    use(monkeypatch, engine)
    assert cli.main(["check", "--online", "config.yaml"]) == 0
    out = capsys.readouterr().out
    assert "WARNING: max (limits of clusters a, b)" in out
    assert "max 5 gives 5 slots, of which the job can use 3" in out


def test_a_metric_without_a_value_yet_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Examined(), FakeSource(failures={"lag": NotYetError("a rate needs two polls")}))
    assert cli.main(["check", "--online", "config.yaml"]) == 0
    out = capsys.readouterr().out
    assert "not yet" in out
    assert "2 clusters, 0 readings failed" in out
    assert cli.main(["check", "--online", "config.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clusters"]["a"]["awaited"] == ["lag"]
    use(monkeypatch, Examined(), FakeSource(failures={"lag": UnavailableError("gone")}))
    assert cli.main(["check", "--online", "config.yaml"]) == 1
