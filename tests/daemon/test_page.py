"""The page and its data: headers, the figures of rows, and that texts from outside stay plain text."""

from __future__ import annotations

import gzip
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autoscaler import web
from autoscaler.core.model import (
    CapacitySpec,
    Cause,
    ClusterState,
    Control,
    ControlKind,
    Decision,
    Learned,
    NamedPolicy,
    Observation,
    Phase,
    Reading,
    Reason,
    Rescale,
    SizeCapacity,
)
from autoscaler.daemon.controller import NOT_OBSERVED, Counters
from autoscaler.daemon.rows import row_document
from autoscaler.daemon.status import ClusterSnapshot
from autoscaler.daemon.workload import Figures, backlog_time, figures, roles

from .conftest import PerReplica, make_cluster, spec
from .test_http_control import READ, House, running

NOW = datetime(2026, 1, 31, 17, tzinfo=UTC)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as found:
        yield found


async def test_the_page_has_strict_headers_and_is_compressed_and_cached(house: House) -> None:
    async with house.session.get(f"{house.daemon.url}/", headers={"Accept-Encoding": "gzip"}) as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Content-Encoding"] == "gzip"
        assert await response.read() == web.files()["index.html"].body
        etag = response.headers["ETag"]
    async with house.session.get(f"{house.daemon.url}/", headers={"If-None-Match": etag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    assert gzip.decompress(web.files()["index.html"].compressed) == web.files()["index.html"].body


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "__init__.py", "..%2F__init__.py", "x" * 3000])
async def test_only_the_files_of_the_page_are_served(house: House, name: str) -> None:
    answer = await house.ask("GET", f"/assets/{name}", status=404)
    assert len(answer["error"]) < 200


async def test_the_page_needs_no_token_but_its_requests_do(tmp_path: Path) -> None:
    async with running(tmp_path, read_needs_token=True) as house:
        async with house.session.get(f"{house.daemon.url}/") as response:
            assert response.status == 200
        await house.ask("GET", "/assets/nothing.js", None, 404)
        await house.ask("GET", "/api/v1/clusters", None, 401)
        await house.ask("GET", "/api/v1/clusters", READ)


async def test_markup_in_a_url_comes_back_as_json_text(house: House) -> None:
    markup = "<script>alert(1)</script>"
    async with house.session.get(f"{house.daemon.url}/api/v1/clusters/{markup}") as response:
        assert response.status == 404
        assert response.content_type == "application/json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert markup in (await response.json())["error"]


# Rows

WORKLOAD = ("load", "capacity", "lag", "backlog_time", "objective", "trouble", "severity")


class Aims(PerReplica):
    """A policy with an objective and an estimate of the capacity of sizes."""

    objective: ClassVar[timedelta] = timedelta(seconds=30)
    arrivals: ClassVar[str] = "offered"
    lag: ClassVar[str] = "waiting"

    def estimate_capacity(self, memory: dict[str, float], size: int, workers: float) -> float | None:
        del size
        return memory["rate"] * workers if memory else None


def observed(size: int = 4, **metrics: float | tuple[float, ...]) -> Observation:
    readings = {name: Reading(value, NOW) for name, value in metrics.items()}
    return Observation(at=NOW, desired=size, ready=size, metrics=readings)


def snapshot(**changes: Any) -> ClusterSnapshot:
    cluster = make_cluster("a", object(), policies=(NamedPolicy("aims", Aims()),))
    decision = Decision(cluster="a", at=NOW, current=4, proposed=4, desired=4, reason=Reason.STEADY)
    found = ClusterSnapshot(
        name="a",
        cluster=cluster,
        dry_run=False,
        observation=observed(offered=100.0, throughput=90.0, waiting=180.0),
        decision=decision,
        state=ClusterState(),
        problem=None,
        trouble=None,
        limits=cluster.spec.limits,
        counters=Counters(),
        fleet=None,
        controls=(),
    )
    return found._replace(**changes)


def test_the_roles_of_metrics_are_those_of_the_policy_or_else_of_the_settings() -> None:
    aims = roles(spec("a", policies=(NamedPolicy("x", PerReplica()), NamedPolicy("aims", Aims()))))
    assert (aims.arrivals, aims.throughput, aims.lag) == ("offered", "throughput", "waiting")
    assert aims.objective == timedelta(seconds=30)
    assert roles(spec("a")).objective is None


def test_figures_are_those_of_the_metrics_and_missing_ones_are_unknown() -> None:
    state = ClusterState(learned=Learned(memory={"aims": {"rate": 50.0}}))
    row = row_document(snapshot(state=state), NOW)
    assert {key: row[key] for key in WORKLOAD} == {
        "load": 100.0,
        "capacity": 200.0,
        "lag": 180.0,
        "backlog_time": 2.0,
        "objective": 30.0,
        "trouble": None,
        "severity": 0,
    }
    row = row_document(snapshot(observation=observed(offered=(60.0, 50.0))), NOW)
    assert (row["load"], row["capacity"], row["lag"], row["backlog_time"]) == (110.0, None, None, None)
    row = row_document(snapshot(observation=None, decision=None, state=None), NOW)
    assert (row["load"], row["capacity"], row["severity"]) == (None, None, 0)


def test_if_no_policy_knows_the_capacity_it_is_the_one_learned_at_saturation() -> None:
    learned = Learned(capacity={2: SizeCapacity(200.0, NOW, 3)})
    plain = spec("a", capacity=CapacitySpec(per_replica=70.0))
    assert figures(plain, observed(4), ClusterState(learned=learned)).capacity == 400.0
    assert figures(plain, observed(4), ClusterState()).capacity == 280.0


def test_a_policy_that_fails_to_estimate_leaves_the_other_figures() -> None:
    class Fails(Aims):
        def estimate_capacity(self, memory: dict[str, float], size: int, workers: float) -> float | None:
            raise RuntimeError(f"{memory} {size} {workers}")

    failing = spec("a", policies=(NamedPolicy("x", Fails()),), capacity=CapacitySpec(per_replica=70.0))
    assert figures(failing, observed(4), ClusterState()).capacity == 280.0


def test_the_backlog_time_of_a_stopped_job_is_lag_over_arrivals() -> None:
    assert figures(spec("a"), observed(throughput=0.0, arrivals=50.0, lag=500.0), None).backlog_time == 10.0
    assert figures(spec("a"), observed(throughput=0.0, lag=500.0), None).backlog_time is None
    assert figures(spec("a"), observed(lag=0.0), None) == Figures(None, None, 0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"lag": 600.0, "throughput": 300.0}, 2.0),
        ({"lag": 600.0, "throughput": (100.0, 200.0)}, 2.0),
        ({"lag": 0.0, "throughput": 0.0}, 0.0),
        ({"lag": 5.0, "throughput": 0.0}, math.inf),
        ({"throughput": 1.0}, None),
        ({"lag": 1.0}, None),
    ],
)
def test_a_backlog_time_is_lag_over_throughput_and_unknown_if_one_is_missing(
    values: dict[str, Any], expected: float | None
) -> None:
    assert backlog_time(spec("a"), observed(**values)) == expected


def test_the_throughput_counts_as_load_if_no_metric_has_the_arrivals() -> None:
    assert figures(spec("a"), observed(throughput=50.0), None).load == 50.0
    assert figures(spec("a", metrics=("arrivals",)), observed(throughput=50.0), None).load is None


MISSED = Rescale(before=2, to=4, at=NOW, cause=Cause.REQUEST, phase=Phase.READY, since=NOW)


@pytest.mark.parametrize(
    ("changes", "severity", "trouble"),
    [
        ({"trouble": NOT_OBSERVED}, 1, NOT_OBSERVED),
        ({"trouble": "scale calls fail"}, 2, "scale calls fail"),
        ({"observation": replace(observed(), missing={"lag": "no answer"})}, 2, "lag cannot be read: no answer"),
        (
            {"observation": replace(observed(), missing={"lag": "no answer", "b": "none"})},
            2,
            "lag cannot be read, and 1 more: no answer",
        ),
        (
            {"state": ClusterState(last_missed=MISSED)},
            2,
            (
                "the rescale from 2 to 4 is stuck after phase 'ready': the next phase missed its deadline; "
                "see `autoscaler explain`"
            ),
        ),
        ({"dry_run": True}, 1, None),
        ({"controls": (Control(kind=ControlKind.HOLD, by="ann", replicas=3),)}, 1, None),
        (
            {
                "decision": Decision(cluster="a", at=NOW, current=10, proposed=10, desired=10, reason=Reason.BOUNDS),
                "observation": observed(10, offered=1.0, throughput=10.0, waiting=310.0),
            },
            2,
            "at its maximum of 10, with 31 s of backlog",
        ),
    ],
)
def test_the_most_urgent_problem_is_named(changes: dict[str, Any], severity: int, trouble: str | None) -> None:
    row = row_document(snapshot(**changes), NOW)
    assert (row["severity"], row["trouble"]) == (severity, trouble)
