from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.config.model import Config
from autoscaler.ports import ConfigurationError
from tests.plugins.distributions import write_distribution


@pytest.fixture(scope="session")
def stub_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    module = "autoscaler_stub_plugins"
    write_distribution(
        site,
        "autoscaler-stub-plugins",
        {
            "policies": {
                "stub-policy": f"{module}:StubPolicy",
                "crashing-policy": f"{module}:CrashingPolicy",
                "exiting-policy": f"{module}:ExitingPolicy",
                "failing-metrics": f"{module}:FailingMetrics",
                "one-name": f"{module}:OneName",
                "odd-lookback": f"{module}:OddLookback",
                "odd-ranges": f"{module}:OddRanges",
                "own-names": f"{module}:OwnNames",
                "failing-levels": f"{module}:FailingLevels",
                "failing-objective": f"{module}:FailingObjective",
                "needs-part": f"{module}:NeedsPart",
                "needs-package": f"{module}:NeedsPackage",
                "any-type": f"{module}:AnyType",
                "unresolved": f"{module}:Unresolved",
                "endless": f"{module}:Endless",
                "new-policy": f"{module}:Renamed",
                "old-policy": f"{module}:Renamed",
            },
            "sources": {
                "stub-source": f"{module}:StubSource",
                "odd-source": f"{module}:OddSource",
                "failing-source": f"{module}:FailingSource",
            },
            "engines": {
                "stub-engine": f"{module}:StubEngine",
                "unhashable-engine": f"{module}:UnhashableEngine",
            },
            "targets": {
                "stub-target": f"{module}:StubTarget",
                "failing-target": f"{module}:FailingTarget",
                "failing-subject": f"{module}:FailingSubject",
            },
            "discoveries": {
                "stub-discovery": f"{module}:StubDiscovery",
                "nameless-discovery": f"{module}:NamelessDiscovery",
            },
        },
        modules={module: (Path(__file__).parent / "stub_plugins.py").read_text()},
        requires=['no-such-cloud>=1; extra == "cloud"'],
    )
    return site


@pytest.fixture(autouse=True)
def _stub_plugins(stub_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(stub_site))


@pytest.fixture
def accepted(tmp_path: Path) -> Callable[..., Config]:
    """Load a string that must be accepted."""

    def read(text: str, environ: Mapping[str, str] | None = None, *, offline: bool = False) -> Config:
        path = tmp_path / "autoscaler.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, environ or {}, offline=offline)

    return read


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., list[str]]:
    """Load a string (or bytes) that must be refused; returns the problems without the file's name."""

    def read(text: str | bytes, environ: Mapping[str, str] | None = None) -> list[str]:
        path = tmp_path / "autoscaler.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(ConfigurationError) as caught:
            load(path, environ or {})
        prefix = f"{path}:"
        assert all(problem.startswith(prefix) for problem in caught.value.problems)
        return [problem.removeprefix(prefix) for problem in caught.value.problems]

    return read


@pytest.fixture
def good() -> str:
    """A short valid file, one item per line: tests replace lines of it and expect problems on them."""
    return GOOD


GOOD = """\
sources:
  main: {type: stub-source, url: "http://127.0.0.1:9090"}
clusters:
  demo:
    target: {type: stub-target}
    min: 1
    max: 4
    interval: 15s
    metrics:
      lag: {source: main, name: lag}
    policies:
      calm: {type: stub-policy, within: 60s}
"""
