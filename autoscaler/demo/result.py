"""The figures of a run, and whether it was a success: pure functions of the observations.

Times are in seconds since the load began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from autoscaler.demo.load import Load
from autoscaler.demo.sink import Account, Arrival
from autoscaler.injob.reactive.snapshot import Step

BACKLOG = 5.0
"""The backlog is drained when the lag is below this many seconds of the load."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The workers at one time.

    Attributes:
        at: seconds since the load began.
        desired: workers requested; None if unknown.
        ready: workers that were ready; None if unknown.
        slots: slots of the job; None if unknown.
    """

    at: float
    desired: int | None
    ready: int | None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Rescale:
    """A change of size that the daemon requested."""

    at: float
    before: int
    to: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole run.

    Attributes:
        load: the offered load.
        start: when the load began, seconds since 1970.
        arrivals: the records at the sink, in the order in which they were processed.
        account: comparison of offered and processed records.
        samples: the workers over time.
        rescales: the rescales that the daemon requested, in order.
        drained: whether the job had read all offered records when it was stopped.
        workers: the number of workers at the end of the run.
        facts: figures of the run that the engine reports.
        trouble: problems with the job's state.
        commits: when each batch was committed, seconds since 1970; empty if there are no batches.
        timeline: the timeline of the scheduler inside the job; empty for Flink, which shows it in its own web UI.
    """

    load: Load
    start: float
    arrivals: Sequence[Arrival]
    account: Account
    samples: Sequence[Sample]
    rescales: Sequence[Rescale]
    drained: bool
    workers: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    trouble: Sequence[str] = ()
    commits: Sequence[float] = ()
    timeline: Sequence[Step] = ()


def lags(run: Run) -> list[tuple[float, int]]:
    """The records offered and not yet processed, sampled once per second."""
    series: list[tuple[float, int]] = []
    last = run.arrivals[-1].at - run.start if run.arrivals else 0.0
    done = 0
    for second in range(int(max(last, run.load.duration)) + 2):
        at = float(second)
        while done < len(run.arrivals) and run.arrivals[done].at - run.start <= at:
            done += 1
        series.append((at, max(0, run.load.offered(at) - done)))
    return series


def throughput(run: Run) -> list[tuple[float, float]]:
    """The records processed per second, averaged over spans of 5 s; the time is the middle of the span."""
    every = 5.0
    counts = Counter(int((arrival.at - run.start) // every) for arrival in run.arrivals)
    last = max([*counts, int(run.load.duration // every)])
    return [((span + 0.5) * every, counts[span] / every) for span in range(last + 1)]


def first_tasks(run: Run) -> dict[str, float]:
    """When each worker processed its first record."""
    first: dict[str, float] = {}
    for arrival in run.arrivals:
        first.setdefault(arrival.worker, arrival.at - run.start)
    return first


def summary(run: Run) -> dict[str, Any]:
    """The content of the result file."""
    load = run.load
    rise, fall = load.rise, load.fall
    ups = [each for each in run.rescales if each.to > each.before]
    downs = [each for each in run.rescales if each.to < each.before]
    lag = lags(run)
    peak_at, peak = max(lag, key=lambda pair: pair[1])
    first_up = next((each.at for each in ups if rise is None or each.at >= rise), None)
    began = min(first_tasks(run).values(), default=0.0)
    joined = [at for at in first_tasks(run).values() if first_up is not None and at > max(first_up, began)]
    last_new = max(joined, default=None)
    enough = BACKLOG * max(rate for _, rate in load.steps)
    back = None
    if last_new is not None:
        back = next((at for at, count in lag if at >= max(last_new, peak_at) and count < enough), None)
    result = {
        **asdict(run.account),
        **run.facts,
        "scale_ups": len(ups),
        "scale_downs": len(downs),
        "most_workers": max((sample.ready or 0 for sample in run.samples), default=0),
        "load_rises_at_s": rise,
        "load_falls_at_s": fall,
        "first_scale_up_after_s": None if first_up is None or rise is None else first_up - rise,
        "last_new_worker_first_task_s": last_new,
        "peak_lag": peak,
        "peak_lag_at_s": peak_at,
        "lag_back_after_s": None if back is None or last_new is None else back - last_new,
        "drained_after_s": None if back is None or first_up is None else back - first_up,
        "first_scale_down_after_s": None if not downs or fall is None else downs[0].at - fall,
        "rescales": [asdict(each) for each in run.rescales],
        "job_scheduler": [{**asdict(step), "at": step.at - run.start} for step in run.timeline],
        "workers": [[sample.at, sample.desired, sample.ready] for sample in run.samples],
        "reasons": problems(run),
    }
    result["ok"] = not result["reasons"]
    return {key: _rounded(value) for key, value in result.items()}


def problems(run: Run) -> list[str]:
    """Why the run was not a success; empty if it was."""
    found: list[str] = []
    ups = [each for each in run.rescales if each.to > each.before]
    downs = [each for each in run.rescales if each.to < each.before]
    if not ups:
        found.append("it did not scale up: the daemon never requested more workers")
    elif not any(at > ups[0].at for at in first_tasks(run).values()):
        found.append("it did not scale up: no new worker processed a record")
    if not run.drained:
        found.append("it did not drain: records were still waiting when the job was stopped")
    if not downs:
        found.append("it did not scale down: the daemon never requested fewer workers")
    elif run.workers != downs[-1].to:
        found.append(f"it did not scale down: {run.workers} workers are left, {downs[-1].to} were requested")
    account = run.account
    if not account.exact:
        found.append(
            f"the sink is not exact: {account.offered} offered, {account.processed} processed, {account.lost} lost, "
            f"{account.duplicated} duplicated, {account.strange} that were never offered"
        )
    return [*found, *run.trouble]


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, float):
        return round(value, 1)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value
