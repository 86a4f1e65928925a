"""The generated history of a fleet compared with its own true values, the trace format, and the simulator."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from autoscaler.core.model import ClusterSpec, Limits, NamedPolicy
from autoscaler.plugins import Kind, load
from autoscaler.ports import Record
from autoscaler.simulation.loads import Load, diurnal
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS
from autoscaler.trace.codec import load_record
from tests.history import fleet as generated
from tests.history.fleet import METRICS, Fleet, frame, observations, rescales, simulated, trace, write, write_traces

SMALL = Fleet(clusters=3, days=1, together=2)


@pytest.fixture(scope="module")
def day() -> tuple[generated.Part, generated.Day]:
    part = SMALL.parts()[0]
    return part, next(simulated(part))


def test_the_same_seed_makes_the_same_history(day: tuple[generated.Part, generated.Day]) -> None:
    part, first = day
    again = next(simulated(part))
    assert observations(part, first).equals(observations(part, again))
    other = Fleet(clusters=3, days=1, together=2, seed=2).parts()[0]
    assert not observations(part, first).equals(observations(other, next(simulated(other))))


def test_a_line_is_a_record_with_the_values_of_the_row(day: tuple[generated.Part, generated.Day]) -> None:
    part, made = day
    rows = {(row["cluster"], row["at"]): row for row in observations(part, made).to_pylist()}
    assert len(rows) == part.count * 5760
    for hour, line in list(trace(part, made))[::997]:
        record = load_record(line)
        seen = record.observation
        row = rows[record.decision.cluster, seen.at]
        assert f"{seen.at:%Y-%m-%dT%H}" == hour
        assert (seen.desired, seen.ready) == (row["desired"], row["ready"])
        assert {name: reading.value for name, reading in seen.metrics.items()} == {
            name: metric["value"] for name, metric in row["metrics"]
        }
        assert seen.engine is not None
        assert (seen.engine.job.value, seen.engine.parallelism) == (row["engine"]["job"], row["engine"]["parallelism"])
        assert (seen.engine.running_since, seen.engine.restarts) == (
            row["engine"]["running_since"],
            row["engine"]["restarts"],
        )


def test_the_throughput_of_saturated_sizes_and_the_durations_of_changes_match_the_truth() -> None:
    part = Fleet(clusters=6, days=2).parts()[0]
    for made in simulated(part):
        busy = (made.values["utilization"] > 0.3) & (np.roll(made.parallelism, 12, axis=1) == made.parallelism)
        for number, truth in enumerate(SMALL.truths()):
            here = busy[number] & (made.parallelism[number] > 0)
            size = made.parallelism[number][here]
            did = (made.values["throughput"] / np.maximum(made.values["utilization"], 1e-9))[number][here]
            error = np.median(np.log(did / (truth.rate * size**truth.exponent)))
            assert abs(error) < 0.03
    found = rescales(part, made).to_pylist()
    ups = [row for row in found if row["direction"] == "up"]
    by_name = {truth.cluster: truth for truth in Fleet(clusters=6).truths()}
    start = np.median([np.log(row["ready_s"] / by_name[row["cluster"]].startup) for row in ups])
    stall = np.median([np.log(row["stall_s"] / by_name[row["cluster"]].stall_up) for row in ups])
    assert len(ups) > 20
    assert abs(start) < 0.15
    assert abs(stall) < 0.15


def test_it_has_the_form_of_the_simulators_history(day: tuple[generated.Part, generated.Day]) -> None:
    records: list[Record] = []
    policy = NamedPolicy("adaptive", load(Kind.POLICY, "adaptive")())
    spec = ClusterSpec(name="it", limits=Limits(1, 24), policies=(policy,), engine=True, metrics=METRICS)
    run(
        spec,
        PLANTS["redeploy"],  # stops for longer than the time between two polls
        Load("day", tuple(diurnal(6, 0.2)), rate_per_worker=1.0).scaled(12.0),
        1,
        record=records.append,
    )
    ours = [load_record(line) for _, line in trace(*day)]
    ours = [record for record in ours if record.decision.cluster == ours[0].decision.cluster]
    for history in (records, ours):
        changes = _changes(history)
        assert changes
        assert {before.decision.desired - before.decision.current != 0 for before, _ in changes} == {True}
        # A change shows as a stop of the job, with waiting records and a start time after it.
        assert max(_lags(history)) > 0
        assert any(_engine(record).job.value == "restarting" for record in history)
        assert all(
            (_engine(record).running_since is None) == (_engine(record).job.value == "restarting") for record in history
        )
        assert all(record.observation.metrics["lag"].over == timedelta(minutes=1) for record in history)
        assert set(history[0].observation.metrics) == set(METRICS)
        assert max(record.observation.metrics["utilization"].value for record in history) == pytest.approx(1.0)
        assert _engine(history[-1]).restarts is not None


def _engine(record: Record) -> Any:
    return record.observation.engine


def _lags(history: list[Record]) -> list[Any]:
    return [record.observation.metrics["lag"].value for record in history]


def _changes(history: list[Record]) -> list[tuple[Record, Record]]:
    """Each record before a change of the desired size, and the next one."""
    return [(first, then) for first, then in pairwise(history) if first.observation.desired != then.observation.desired]


@pytest.mark.e2e
def test_the_written_rows_are_those_of_the_frames(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(clusters=3, days=1, interval=300.0, together=2)
    rows = write(spark, fleet, tmp_path / "dataset")
    assert rows == fleet.observations == 3 * 288
    for table in generated.MAKERS:
        expected = frame(spark, fleet, table)
        read = spark.read.schema(expected.schema).parquet(str(tmp_path / "dataset" / table))
        assertDataFrameEqual(read, expected)
    assert write_traces(spark, fleet, tmp_path / "traces") == rows
    lines = (tmp_path / "traces" / "daemon-00002" / "2026-01-05T07.jsonl").read_text().splitlines()
    assert len(lines) == 12
    assert {json.loads(line)["decision"]["cluster"] for line in lines} == {"job-0002"}


def test_a_skewed_fleet_has_one_cluster_with_a_hundred_times_the_data(spark: SparkSession) -> None:
    fleet = Fleet(clusters=3, days=1, interval=600.0, skewed=True)
    counts = {row.cluster: row["count"] for row in frame(spark, fleet).groupBy("cluster").count().collect()}
    assert counts == {"job-0000": 14400, "job-0001": 144, "job-0002": 144}
    assert sum(counts.values()) == fleet.observations
