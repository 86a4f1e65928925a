"""The simulation of the demo: it recovers its own parameters, and its report follows from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config import load
from autoscaler.core.model import ClusterSpec
from autoscaler.demo.config import CLUSTER, configuration
from autoscaler.demo.load import Load, surge
from autoscaler.demo.processes import Processes
from autoscaler.demo.result import Run, summary
from autoscaler.demo.simulation import Measured, describe_simulation, measure, simulate, simulate_beside
from autoscaler.demo.spark.environment import SparkEnvironment
from autoscaler.demo.spark.job import BATCH
from autoscaler.ports import AutoscalerError

SHORT = 110.0
WINDOW = 10.0
WORKERS = Measured(rate_per_worker=19.0, startup=6.0, joined=4.0, cold=2.0, shortest=1.0)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ClusterSpec:
    """The demo's own configuration."""
    work = tmp_path_factory.mktemp("demo")
    try:
        parts = SparkEnvironment(Processes(work / "logs", work / "workers"), work).parts
    except AutoscalerError as error:
        pytest.skip(str(error))
    path = work / "autoscaler.yaml"
    path.write_text(configuration(parts, 6, 1, Path(work), SHORT))
    return load(path, {}).clusters[CLUSTER].spec


@pytest.fixture(scope="module")
def run(spec: ClusterSpec) -> Run:
    return simulate(spec, surge(SHORT), WORKERS, BATCH, WINDOW)


def test_it_scales_up_processes_the_backlog_scales_down_and_loses_nothing(run: Run) -> None:
    result = summary(run)
    assert result["ok"], result["reasons"]
    assert result["offered"] == result["processed"]
    assert [(each.before, each.to) for each in run.rescales] == [(1, 3), (3, 1)]


def test_the_lag_grows_by_the_records_that_the_workers_cannot_process(run: Run) -> None:
    result = summary(run)
    rise, up = surge(SHORT).rise, run.rescales[0].at
    assert rise is not None
    helped = up + WORKERS.startup + WORKERS.joined + WORKERS.cold
    assert result["last_new_worker_first_task_s"] == pytest.approx(helped, abs=0.5)
    # Nothing is processed while the first batch waits for its cold workers.
    expected = (46 - WORKERS.rate_per_worker) * (helped - rise) + WORKERS.rate_per_worker * WORKERS.cold
    assert result["peak_lag"] == pytest.approx(expected, rel=0.05)


def test_the_speed_of_workers_is_measured_from_a_run(run: Run) -> None:
    found = measure(run, BATCH)
    assert found is not None
    assert found.rate_per_worker == pytest.approx(WORKERS.rate_per_worker, rel=0.03)
    assert found.startup == pytest.approx(WORKERS.startup, abs=0.3)
    assert found.joined == pytest.approx(WORKERS.joined, abs=0.3)
    # Then the delayed batch still has something to process.
    assert WORKERS.cold <= found.cold + 0.3 <= WORKERS.cold + 2
    assert found.shortest == pytest.approx(WORKERS.shortest, abs=0.3)


def test_slower_start_ups_cost_lag_and_time(spec: ClusterSpec, run: Run) -> None:
    later = simulate(spec, surge(SHORT), replace(WORKERS, startup=16.0), BATCH, WINDOW)
    before, after = summary(run), summary(later)
    assert after["peak_lag"] > before["peak_lag"] + 200
    assert after["drained_after_s"] > before["drained_after_s"]


def test_it_stops_waiting_for_a_query_that_never_catches_up(spec: ClusterSpec) -> None:
    result = summary(simulate(spec, surge(SHORT), replace(WORKERS, rate_per_worker=1.0), BATCH, WINDOW))
    assert not result["ok"]
    assert result["lost"] > 0
    assert result["drained_after_s"] is None


def test_a_load_for_one_worker_needs_no_more(spec: ClusterSpec) -> None:
    load = Load(((0.0, 5.0), (20.0, 8.0)), 60.0)
    found = simulate(spec, load, WORKERS, BATCH, WINDOW)
    assert found.rescales == []
    assert found.drained
    assert measure(found, BATCH) is None
    assert simulate_beside(found, spec, BATCH, WINDOW) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals": ()},
        {"samples": ()},
        {"rescales": ()},
        {"commits": ()},
        {"load": Load(((0.0, 46.0),), SHORT)},
    ],
)
def test_too_few_observations_give_no_measurement(run: Run, changes: dict[str, Any]) -> None:
    assert measure(replace(run, **changes), BATCH) is None


def test_if_no_batch_ended_before_the_load_rose_any_batch_is_used_for_the_duration(run: Run) -> None:
    rise = run.load.rise or 0.0
    found = measure(replace(run, commits=[at for at in run.commits if at > rise]), BATCH)
    assert found is not None
    assert found.shortest == BATCH


def test_there_is_no_measurement_if_workers_were_added_before_the_load_was_high_enough(run: Run) -> None:
    assert measure(run, 60.0) is None


def test_there_is_no_measurement_if_nothing_was_processed_before_workers_were_added(run: Run) -> None:
    late = [arrival for arrival in run.arrivals if not 15 < arrival.at < run.rescales[0].at]
    assert measure(replace(run, arrivals=late), BATCH) is None


def test_a_simulation_with_measured_parameters_agrees_with_its_origin(spec: ClusterSpec, run: Run) -> None:
    found, real = simulate_beside(run, spec, BATCH, WINDOW), summary(run)
    assert found is not None
    # Up to a batch more: until the delayed batch is committed, its records still count as waiting.
    assert found["peak_lag"] == pytest.approx(real["peak_lag"], rel=0.1)
    # Three workers process little more than the 46 records/s that arrive: small differences make the lag drain later.
    slower = (3 * WORKERS.rate_per_worker - 46) / (3 * found["one_worker_per_s"] - 46)
    assert found["drained_after_s"] == pytest.approx(real["drained_after_s"] * slower, rel=0.1)
    assert (found["scale_ups"], found["scale_downs"]) == (1, 1)
    assert found["one_worker_per_s"] == pytest.approx(WORKERS.rate_per_worker, rel=0.03)


def test_it_decides_at_the_times_of_the_daemon_of_the_run(spec: ClusterSpec) -> None:
    run = simulate(spec, surge(SHORT), WORKERS, BATCH, WINDOW, 1.5)
    assert {each.at % 2 for each in run.rescales} == {1.5}
    found = simulate_beside(run, spec, BATCH, WINDOW)
    assert found is not None
    assert {each["at"] % 2 for each in found["rescales"]} == {1.5}


def test_the_sentence_has_the_deviation_from_the_real_run() -> None:
    simulated = {"peak_lag": 110, "drained_after_s": 45.0, "scale_ups": 1, "scale_downs": 2}
    said = describe_simulation({"peak_lag": 100, "drained_after_s": 50.0, "simulated": simulated})
    assert said == "lag at most 110 records (+10%), drained 45 s after the request (-10%), 1 up and 2 down"
    never = describe_simulation(
        {"peak_lag": 100, "drained_after_s": None, "simulated": {**simulated, "drained_after_s": None}}
    )
    assert never == "lag at most 110 records (+10%), never drained, 1 up and 2 down"


def test_a_batch_that_leaves_records_takes_as_long_as_its_records(spec: ClusterSpec) -> None:
    # If a small batch takes longer than expected, a daemon would otherwise never see the end of the backlog.
    found = simulate(spec, surge(SHORT), replace(WORKERS, shortest=4.0), BATCH, WINDOW)
    result = summary(found)
    assert result["ok"], result["reasons"]
    assert found.rescales[-1].at < SHORT
