"""The figures and the verdict of a run, from synthetic runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.demo.load import Load
from autoscaler.demo.result import Rescale, Run, Sample, first_tasks, lags, problems, summary, throughput
from autoscaler.demo.runner import describe_scaling
from autoscaler.demo.sink import Account, Arrival
from autoscaler.injob.reactive.snapshot import State, Step

START = 1_000_000.0
LOAD = Load(((0.0, 10.0), (10.0, 30.0), (40.0, 10.0)), 60.0)


def processed() -> list[Arrival]:
    """10/s by one worker; from second 20 on 40/s by two, as long as records are waiting."""
    arrivals: list[Arrival] = []
    at, done = 0.0, 0
    while done < LOAD.offered(60):
        at += 0.1
        rate = 1 if at < 20 else 4
        for _ in range(min(rate, LOAD.offered(at) - done)):
            worker = "second" if at >= 20 and done % 2 else "first"
            arrivals.append(Arrival(0, done, worker, START + at))
            done += 1
    return arrivals


def good(**changes: Any) -> Run:
    total = LOAD.offered(60)
    run = Run(
        load=LOAD,
        start=START,
        arrivals=processed(),
        account=Account(offered=total, processed=total, lost=0, duplicated=0, strange=0),
        samples=[Sample(0.0, 1, 1), Sample(13.0, 2, 1), Sample(18.0, 2, 2), Sample(55.0, 1, 1)],
        rescales=[Rescale(12.0, 1, 2, "above"), Rescale(52.0, 2, 1, "below")],
        drained=True,
        workers=1,
        facts={"failed_tasks": 0},
    )
    return replace(run, **changes)


def test_actions_of_the_jobs_scheduler_are_shown_beside_decisions_of_the_daemon() -> None:
    entered: dict[str, Any] = {"slots": 2, "before": 1, "after": 2, "took": 20.5}
    step = Step(at=START + 17.5, state=State.EXECUTING, why="the next batch uses them", **entered)
    result = summary(good(timeline=[step]))
    assert result["job_scheduler"] == [
        {"at": 17.5, "state": "executing", "why": "the next batch uses them", **entered},
    ]
    assert describe_scaling(result) == [
        "the daemon:",
        "  at 12 s: 1 -> 2 workers",
        "  at 52 s: 2 -> 1 workers",
        "the scheduler inside the job:",
        "  at 18 s: executing: the next batch uses them",
    ]
    assert describe_scaling(summary(good()))[-1] == "  at 52 s: 2 -> 1 workers"


def test_a_good_run_is_a_success_with_its_figures() -> None:
    result = summary(good())
    assert result["ok"] is True
    assert result["reasons"] == []
    assert (result["offered"], result["processed"], result["lost"], result["duplicated"]) == (1200, 1200, 0, 0)
    assert (result["scale_ups"], result["scale_downs"], result["most_workers"]) == (1, 1, 2)
    assert result["failed_tasks"] == 0
    assert result["first_scale_up_after_s"] == 2.0
    assert result["first_scale_down_after_s"] == 12.0
    assert result["last_new_worker_first_task_s"] == pytest.approx(20, abs=0.2)
    # 20/s too many for ten seconds, then 10/s fewer each second, down to 5 s of the highest load
    assert result["peak_lag"] == pytest.approx(200, abs=5)
    assert result["lag_back_after_s"] == pytest.approx(6, abs=1)


def test_lag_is_the_number_of_offered_and_unprocessed_records() -> None:
    series = dict(lags(good()))
    assert series[0.0] == 0
    assert series[15.0] == pytest.approx(100, abs=3)
    assert list(series.values())[-1] == 0


def test_throughput_is_counted_over_intervals() -> None:
    series = dict(throughput(good()))
    assert series[2.5] == pytest.approx(10, abs=1)
    assert series[22.5] == pytest.approx(40, abs=1)
    assert sum(rate * 5 for rate in series.values()) == 1200


def test_the_first_task_of_a_worker_is_its_first_record() -> None:
    assert list(first_tasks(good())) == ["first", "second"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rescales": [Rescale(52.0, 2, 1, "below")]}, "never requested more"),
        ({"rescales": [Rescale(12.0, 1, 2, "above")]}, "never requested fewer"),
        ({"arrivals": [arrival for arrival in processed() if arrival.worker == "first"]}, "no new worker"),
        ({"drained": False}, "did not drain"),
        ({"workers": 2}, "2 workers are left, 1 were requested"),
        ({"trouble": ["the state is not exact"]}, "the state is not exact"),
        ({"account": Account(1200, 1199, 1, 0, 0)}, "1 lost"),
        ({"account": Account(1200, 1201, 0, 1, 0)}, "1 duplicated"),
        ({"account": Account(1200, 1201, 0, 0, 1)}, "1 that were never offered"),
        ({"account": Account(1200, 1200, 1, 1, 0)}, "1 lost, 1 duplicated"),
    ],
)
def test_each_missing_part_is_a_failure_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    found = problems(good(**changes))
    assert len(found) == 1
    assert reason in found[0]
    assert summary(good(**changes))["ok"] is False


def test_a_run_without_arrivals_still_has_a_result() -> None:
    empty = good(arrivals=[], samples=[], rescales=[], account=Account(1200, 0, 1200, 0, 0), drained=False)
    result = summary(empty)
    assert result["ok"] is False
    assert result["first_scale_up_after_s"] is None
    assert result["last_new_worker_first_task_s"] is None
    assert result["peak_lag"] == 1200


def test_the_picture_is_drawn_even_for_an_empty_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    from autoscaler.demo.plot import draw  # noqa: PLC0415 - it needs matplotlib

    draw(good(), tmp_path / "good.png")
    draw(good(arrivals=[], samples=[], rescales=[]), tmp_path / "empty.png")
    for name in ("good.png", "empty.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
