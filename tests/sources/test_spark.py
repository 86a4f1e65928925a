"""The metrics computed from a query's batches, against a simulated query whose true values are known."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from autoscaler.clients.spark import parse_time
from autoscaler.clients.spark_progress import Batch, Run
from autoscaler.injob.report import trim, with_row_positions
from autoscaler.ports import AnswerError
from autoscaler.sources.spark import BusySample, Spark, SparkQuery, busy_share
from autoscaler.sources.spark_metrics import (
    METRICS,
    Metric,
    Snapshot,
    arrivals,
    batch_time,
    growth,
    lag,
    lag_seconds,
    saturation,
    throughput,
)

DATA = Path(__file__).parent / "data"
T0 = 1_795_000_000.0


def batch(
    number: int, start: float, length: float, begin: int, end: int, head: int | None, rows: int | None = None
) -> dict[str, Any]:
    return {
        "batchId": number,
        "start": start,
        "received": start + length + 0.1,
        "rows": end - begin if rows is None else rows,
        "durationMs": {"triggerExecution": round(length * 1000), "addBatch": round(length * 900)},
        "sources": [{"description": "log", "rows": rows, "start": begin, "end": end, "latest": head, "partitions": 4}],
        "state": [],
    }


def run(progress: list[dict[str, Any]], **changes: Any) -> Run:
    fields = {
        "id": "query",
        "runId": "run",
        "name": "q",
        "trigger": "ProcessingTimeTrigger(0)",
        "started": T0 - 1,
        "progress": progress[-120:],
    }
    return TypeAdapter(Run).validate_json(json.dumps({**fields, **changes}))


class Query:
    """A simulated query: a batch takes `overhead` seconds and 1/speed per record, at most `most` records."""

    def __init__(
        self,
        rate: Callable[[float], float],
        overhead: float = 0.25,
        speed: float = 400.0,
        most: int | None = None,
        interval: float = 0.0,
    ) -> None:
        self.rate, self.overhead, self.speed, self.most, self.interval = rate, overhead, speed, most, interval
        self.ticks = [0.0]

    def head(self, t: float) -> int:
        # Rates are step functions of whole seconds, so the sum over hundredths is exact enough.
        while len(self.ticks) <= t * 100 + 1:
            self.ticks.append(self.ticks[-1] + self.rate((len(self.ticks) - 1) / 100) / 100)
        return int(self.ticks[int(t * 100)])

    def until(self, end: float, hang: tuple[float, float] | None = None) -> tuple[Snapshot, int]:
        """The snapshot at `end`, and the true lag in records at that time."""
        t, done, number = 0.0, 0, 0
        progress: list[dict[str, Any]] = []
        working = False
        while t < end:
            begun, head = t, self.head(t)
            upto = head if self.most is None else min(head, done + self.most)
            if upto > done:
                length = self.overhead + (upto - done) / self.speed
                if hang and t <= hang[0] < t + length:
                    length += hang[1]
                if t + length > end:
                    working = True
                    break
                progress.append(batch(number, T0 + t, length, done, upto, head))
                number, done = number + 1, upto
                t += length
            else:
                t += 0.01
            if self.interval:
                # Spark waits for the next multiple after the batch began; after a longer batch the next one follows at
                # once.
                t = max(t, (math.floor(begun / self.interval + 1e-9) + 1) * self.interval)
        trigger = f"ProcessingTimeTrigger({round(self.interval * 1000)})"
        seen = Snapshot(run=run(progress, trigger=trigger, started=T0 - 60), now=T0 + end, window=15.0, working=working)
        return seen, self.head(end) - done


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate


# The rows of the table that was measured on Spark 4.3 (true capacity 400 rows/s).


@pytest.mark.parametrize(
    ("rate", "interval", "most"), [(20, 0, None), (20, 0, 800), (100, 0, None), (100, 0, 800), (100, 2, None)]
)
def test_low_load_is_never_taken_for_saturation(rate: float, interval: float, most: int | None) -> None:
    for end in (10.0, 30.3, 61.7):
        seen, _ = Query(steady(rate), interval=interval, most=most).until(end)
        assert saturation(seen).value < 0.6
        assert throughput(seen).value == pytest.approx(rate, rel=0.25)


def test_three_hundred_per_second_almost_fill_a_trigger_of_two_seconds() -> None:
    seen, _ = Query(steady(300), interval=2).until(60.0)
    assert saturation(seen).value == pytest.approx((0.25 + 600 / 400) / 2, abs=0.05)
    assert saturation(seen).value < 0.95
    # While it processes the backlog it is saturated: the row as measured.
    seen, _ = Query(lambda t: 900 if t < 20 else 300, interval=2, most=800).until(40.0)
    assert saturation(seen).value >= 0.95
    assert throughput(seen).value == pytest.approx(371, rel=0.15)


@pytest.mark.parametrize(("rate", "interval", "most"), [(1000, 0, 800), (450, 0, 800), (1000, 0, None), (600, 2, None)])
def test_a_load_above_capacity_is_saturation_and_throughput_is_the_capacity(
    rate: float, interval: float, most: int | None
) -> None:
    seen, _ = Query(steady(rate), interval=interval, most=most).until(58.0)
    assert saturation(seen).value >= 0.95
    assert throughput(seen).value == pytest.approx(400, rel=0.15)


def test_the_saturation_of_a_fixed_trigger_is_the_used_share_of_its_interval() -> None:
    seen, _ = Query(steady(100), interval=2).until(60.0)
    assert saturation(seen).value == pytest.approx((0.25 + 200 / 400) / 2, rel=0.1)


@pytest.mark.parametrize("waited", [0.3, 0.6, 0.99])
@pytest.mark.parametrize("interval", [60.0, 600.0])
def test_a_query_that_waits_for_its_trigger_is_not_idle(interval: float, waited: float) -> None:
    seen, _ = Query(steady(50), interval=interval).until((4 + waited) * interval)
    assert throughput(seen).value == pytest.approx(50, rel=0.01)
    assert saturation(seen).value == pytest.approx(50 / 400, rel=0.1)
    # The next trigger finds no records.
    last = seen.run.progress[-1]
    later = replace(seen, now=last.start + interval + 2)
    for idle in (later, replace(later, working=None, run=replace(seen.run, idle=later.now - 1))):
        assert (throughput(idle).value, saturation(idle).value) == (0, 0)


def test_an_empty_trigger_within_the_interval_ends_the_wait() -> None:
    """The first batch begins with the query, and triggers fire at multiples of the interval."""
    seen, _ = Query(steady(50), interval=60.0).until(4.6 * 60)
    idle = replace(seen, working=None, run=replace(seen.run, idle=seen.now - 1))
    assert (throughput(idle).value, saturation(idle).value) == (0, 0)


@pytest.mark.parametrize("most", [None, 800])
@pytest.mark.parametrize("rate", [5, 20, 100, 300, 1000])
def test_arrivals_are_the_offered_rate_and_not_the_admitted_one(rate: float, most: int | None) -> None:
    seen, _ = Query(steady(rate), most=most).until(60.0)
    assert arrivals(seen).value == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("most", [None, 800])
@pytest.mark.parametrize("rate", [20, 100, 300, 1000])
@pytest.mark.parametrize("end", [58.0, 58.6, 59.2])
def test_lag_is_the_true_backlog_even_in_the_middle_of_a_batch(rate: float, most: int | None, end: float) -> None:
    seen, waiting = Query(steady(rate), most=most).until(end)
    assert lag(seen).value == pytest.approx(waiting, rel=0.02, abs=5)
    assert lag(seen).at == seen.now
    assert lag_seconds(seen).value == pytest.approx(waiting / rate, rel=0.1, abs=0.2)


def test_a_step_up_is_visible_within_two_batches_and_a_second() -> None:
    query = Query(lambda t: 40 if t < 60 else 150, overhead=0.5, speed=100, most=200)
    seen, _ = query.until(66.5)
    assert arrivals(seen).value == pytest.approx(150, rel=0.1)


def test_a_burst_within_one_batch_is_not_a_step() -> None:
    points = [(float(t), 40.0 * t + (100 if t == 14 else 0)) for t in range(15)]
    assert growth(points, 15) == pytest.approx(40 + 100 / 14)


def test_a_producer_that_writes_in_bursts_is_averaged() -> None:
    points = [(float(t), 500.0 * (t // 5)) for t in range(31)]
    for newest in range(16, 31):
        assert growth(points[: newest + 1], 15) == pytest.approx(100, rel=0.35)


def test_a_step_down_is_averaged_over_the_window() -> None:
    points = [(float(t), 100.0 * min(t, 20) + 10.0 * max(0, t - 20)) for t in range(24)]
    assert growth(points, 15) == pytest.approx((12 * 100 + 3 * 10) / 15)


def test_no_progress_of_an_idle_query_means_no_load() -> None:
    query = Query(lambda t: 40 if t < 20 else 0)
    seen, _ = query.until(33.0)
    assert lag(seen).value == 0
    assert lag(seen).at == seen.now
    assert 0 < arrivals(seen).value < 20
    seen, _ = query.until(27.0)
    seen = replace(seen, now=seen.now + 100, run=replace(seen.run, idle=seen.now + 95))
    for metric in (lag, lag_seconds, arrivals, throughput, saturation):
        value = metric(seen)
        assert value.value == 0
        assert value.at == seen.now


def test_no_progress_of_a_working_query_means_growing_lag_and_then_an_error() -> None:
    query = Query(steady(200))
    before, _ = query.until(30.0)
    values = []
    for later in (0, 10, 30, 50):
        seen = replace(before, now=before.now + later, working=True)
        values.append(lag(seen).value)
        assert lag(seen).value == pytest.approx(200 * (seen.now - seen.run.progress[-1].start), rel=0.05)
        assert throughput(seen).at < seen.now - later + 1, "what completed batches say grows old"
    assert values == sorted(values)
    with pytest.raises(AnswerError, match="stuck"):
        lag(replace(before, now=before.now + 80, working=True))


def test_without_jobs_and_idle_events_a_silent_query_is_stuck_and_not_idle() -> None:
    before, _ = Query(steady(200)).until(30.0)
    assert lag(replace(before, now=before.now + 40, working=False)).value > 7000
    with pytest.raises(AnswerError, match="not idle"):
        lag(replace(before, now=before.now + 100, working=False))


def test_without_the_drivers_ui_only_an_idle_event_proves_idleness() -> None:
    seen, _ = Query(lambda t: 100 if t < 20 else 0).until(28.0)
    last = seen.run.progress[-1]
    blind = replace(seen, working=None)
    assert lag(blind).value > 100
    idle = replace(blind, run=replace(seen.run, idle=last.received + 1))
    assert lag(idle).value == 0


def test_between_two_triggers_of_a_fixed_interval_records_wait() -> None:
    for end in (32.0, 35.0, 39.0):
        seen, waiting = Query(steady(10), interval=10).until(end)
        assert lag(seen).value == pytest.approx(waiting, abs=2)


def test_a_hung_batch_is_not_used_as_capacity() -> None:
    for most in (None, 60):
        query = Query(steady(20), most=most)
        for end in (80.6, 81.0, 82.0, 84.0, 90.0):
            seen, _ = query.until(end, hang=(60.0, 20.0))
            assert seen.now - lag(seen).at < 1
            if saturation(seen).value >= 0.95:
                assert throughput(seen).value > 140, "a capped batch of 60 takes 0.4 s"


def test_throughput_and_saturation_do_not_mix_batches_with_different_numbers_of_slots() -> None:
    slow = [batch(n, T0 + 2 * n, 2.0, 100 * n, 100 * n + 100, 100 * n + 900) for n in range(20)]
    mixed = [batch(20, T0 + 40, 5.0, 2000, 2100, 4000)]
    fast = [batch(21 + n, T0 + 45 + n, 1.0, 2100 + 100 * n, 2200 + 100 * n, 4000 + 50 * n) for n in range(3)]
    change = (T0 + 42.0,)
    for progress, now, rate, at in (
        (slow, T0 + 42.5, 50, T0 + 40),  # the batch of the change is running
        (slow + mixed, T0 + 45.5, 50, T0 + 40),  # it has ended: cold, and with two numbers of slots
        (slow + mixed + fast, T0 + 48.2, 100, T0 + 48),
    ):
        seen = Snapshot(run=run(progress, started=T0 - 60), now=now, window=15.0, working=True, changes=change)
        assert throughput(seen).value == pytest.approx(rate)
        assert throughput(seen).at == pytest.approx(at)
        assert saturation(seen).value == pytest.approx(1.0)


def test_the_first_batch_of_a_run_is_too_cold_to_show_saturation() -> None:
    seen = Snapshot(run=run([batch(0, T0, 9.0, 0, 200, 400)]), now=T0 + 9.5, window=15.0, working=True)
    with pytest.raises(AnswerError, match="no whole batch"):
        saturation(seen)
    assert lag(seen).value == 200
    assert lag(seen).at == T0, "dated when it was true"
    with pytest.raises(AnswerError, match="two batches"):
        arrivals(seen)


def test_a_source_that_does_not_report_its_newest_offset_has_no_lag() -> None:
    seen = Snapshot(
        run=run([batch(n, T0 + n, 0.5, 10 * n, 10 * n + 10, None) for n in range(5)]), now=T0 + 5, window=15.0
    )
    for metric in (lag, lag_seconds, arrivals):
        with pytest.raises(AnswerError, match="does not report its newest offset"):
            metric(seen)
    assert throughput(seen).value == pytest.approx(10, rel=0.3)


def test_offsets_that_do_not_count_records_are_refused() -> None:
    seconds = [batch(n, T0 + n, 0.2, n, n + 1, n + 1, rows=50) for n in range(10)]
    with pytest.raises(AnswerError, match="do not count records"):
        arrivals(Snapshot(run=run(seconds), now=T0 + 10, window=15.0, working=True))


def test_throughput_counts_rows_if_offsets_count_something_else() -> None:
    seconds = [batch(n, T0 + n, 1.0, n, n + 1, n + 1, rows=50) for n in range(10)]
    assert throughput(Snapshot(run=run(seconds), now=T0 + 10, window=15.0)).value == pytest.approx(50)


def files(seconds: list[float], pause: float = 0.0, interval: float = 0.0) -> Snapshot:
    """A query on files, one per batch, that reads a thousand rows in a tenth of a second."""
    found, at = [], 0.0
    for number, length in enumerate(seconds):
        found.append(batch(number, T0 + at, length, number, number + 1, None, rows=round(10_000 * length)))
        at += max(length + pause, interval)
    trigger = f"ProcessingTimeTrigger({round(interval * 1000)})"
    return Snapshot(run=run(found, trigger=trigger), now=T0 + at, window=15.0)


def test_files_are_not_taken_for_records() -> None:
    seen = files([0.1, *[4.0] * 5])
    assert throughput(seen).value == pytest.approx(10_000)
    assert saturation(seen).value == 1, "batches are longer as they read more, and may leave some"


def test_a_query_whose_backlog_is_not_reported_is_not_taken_for_idle_while_its_batches_follow_at_once() -> None:
    with pytest.raises(AnswerError, match="whether they leave a backlog is unknown: a source does not report"):
        saturation(files([1.0] * 10))
    assert saturation(files([1.0] * 10, pause=0.5)).value == 0, "after each batch there was nothing to do"
    assert saturation(files([1.0] * 10, interval=2.0)).value == pytest.approx(0.5)


def test_a_file_that_arrives_during_a_batch_does_not_hide_that_a_query_is_almost_idle() -> None:
    at_once = [batch(n, T0 + at, 1.0, n, n + 1, None, rows=900) for n, at in enumerate((0, 6, 12, 13, 20, 27, 33))]
    seen = Snapshot(run=run(at_once), now=T0 + 36, window=60.0)
    assert 1 / 36 < saturation(seen).value < 1 / 25, "of the one before it some may have been left"


def test_a_batch_that_only_moves_the_watermark_shows_that_the_backlog_was_empty() -> None:
    found = []
    for n in range(8):
        found.append(batch(2 * n, T0 + 5 * n, 1.0, n, n + 1, None, rows=900))
        found.append(batch(2 * n + 1, T0 + 5 * n + 1, 0.3, n + 1, n + 1, None, rows=0))
    assert saturation(Snapshot(run=run(found), now=T0 + 38, window=15.0)).value == 0


def test_a_reset_source_gives_no_negative_rate() -> None:
    old = [batch(n, T0 + n, 0.5, 1000 * n, 1000 * n + 1000, 1000 * n + 1000) for n in range(10)]
    new = [batch(10 + n, T0 + 10 + n, 0.5, 10 * n, 10 * n + 10, 10 * n + 10) for n in range(2)]
    assert arrivals(Snapshot(run=run(old + new), now=T0 + 11.6, window=15.0, working=True)).value == pytest.approx(10)
    with pytest.raises(AnswerError, match="two batches"):
        arrivals(Snapshot(run=run(old + new[:1]), now=T0 + 10.6, window=15.0, working=True))


def idled(progress: list[dict[str, Any]], idle_at: float) -> list[dict[str, Any]]:
    """The last batch came after the query had reported, at `idle_at`, that it was idle."""
    return [*progress[:-1], progress[-1] | {"idle": idle_at}]


def test_a_burst_after_minutes_of_idleness_is_neither_stuck_nor_without_lag() -> None:
    calm = [batch(n, T0 + n, 0.5, 50 * n, 50 * n + 50, 50 * n + 50) for n in range(20)]
    idle_at = T0 + 300.0
    # The batch of the burst is running: the query was idle 3 s ago, and the arrivals since then are unknown.
    seen = Snapshot(run=run(calm, idle=idle_at), now=idle_at + 3, window=15.0, working=True)
    with pytest.raises(AnswerError, match="was idle 3 s ago and is not idle now; its lag is unknown"):
        lag(seen)
    with pytest.raises(AnswerError, match="its lag is unknown until"):
        lag_seconds(seen)
    assert arrivals(seen).at == idle_at, "nothing came, as of when the query said so"
    # Its driver hangs after the pause, with no job to be seen.
    with pytest.raises(AnswerError, match="its lag is unknown until"):
        lag(replace(seen, now=idle_at + 40, working=False))
    # The first capped batch has ended.
    burst = [*calm, batch(20, idle_at + 1, 4.0, 1000, 1500, 5000)]
    seen = Snapshot(run=run(idled(burst, idle_at), idle=idle_at), now=idle_at + 6, window=15.0, working=True)
    assert lag(seen).value >= 3500
    assert arrivals(seen).value > 200, "4,000 came within a second, which the window of 15 s dilutes"
    burst.append(batch(21, idle_at + 5, 4.0, 1500, 2000, 9000))
    seen = Snapshot(
        run=run(idled(burst[:-1], idle_at) + burst[-1:], idle=idle_at), now=idle_at + 10, window=15.0, working=True
    )
    assert arrivals(seen).value == pytest.approx(8000 / 5)
    assert saturation(seen).value == pytest.approx(1)


def test_added_partitions_change_positions_but_give_no_arrivals_and_no_throughput() -> None:
    def wider(number: int, start: float, begin: int, end: int, partitions: tuple[int, int]) -> dict[str, Any]:
        made = batch(number, start, 0.5, begin, end, end, rows=100)
        made["sources"][0] |= {"startPartitions": partitions[0], "partitions": partitions[1]}
        return made

    old = [wider(n, T0 + n, 100 * n, 100 * n + 100, (4, 4)) for n in range(10)]
    # A topic that kept only its last records: its positions begin at 5 million.
    joined = wider(10, T0 + 10, 1000, 5_001_100, (4, 6))
    new = [wider(11 + n, T0 + 11 + n, 5_001_100 + 100 * n, 5_001_200 + 100 * n, (6, 6)) for n in range(3)]
    seen = Snapshot(run=run([*old, joined], started=T0 - 60), now=T0 + 10.8, window=15.0, working=True)
    assert throughput(seen).value < 400
    with pytest.raises(AnswerError, match="two batches"):
        arrivals(seen)
    seen = Snapshot(run=run([*old, joined, *new], started=T0 - 60), now=T0 + 13.8, window=15.0, working=True)
    assert arrivals(seen).value == pytest.approx(100)
    assert throughput(seen).value == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("trigger", ["AvailableNowTrigger", "OneTimeTrigger"])
def test_arrivals_are_unknown_for_a_query_that_runs_once(trigger: str) -> None:
    # It fixes the end of its input at its start; that this end does not move says nothing about the load.
    once = [batch(n, T0 + 2 * n, 1.9, 100 * n, 100 * n + 100, 5000) for n in range(8)]
    seen = Snapshot(run=run(once, trigger=trigger, started=T0 - 60), now=T0 + 16.5, window=15.0, working=True)
    for metric in (arrivals, lag_seconds):
        with pytest.raises(AnswerError, match=rf"reads the data that exists at its start and ends \({trigger}\)"):
            metric(seen)
    assert (lag(seen).value, lag(seen).at) == (4200, T0 + 14)
    assert saturation(seen).value == pytest.approx(1)


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 20.0, -20.0])
def test_an_adjusted_clock_of_the_driver_is_noticed_and_gives_no_rate(jump: float) -> None:
    def steadily(made: dict[str, Any], by: float = 0.0) -> dict[str, Any]:
        steady = made["received"] - T0 + 1000
        return made | {"steady": steady, "start": made["start"] + by, "received": made["received"] + by}

    before = [steadily(batch(n, T0 + n, 0.9, 1000 * n, 1000 * n + 1000, 1000 * n + 1000)) for n in range(20)]
    seen = Snapshot(run=run(before), now=T0 + 20.5 + jump, window=15.0, working=True, steady=1020.5)
    for compute in METRICS.values():
        with pytest.raises(AnswerError, match="clock"):
            compute(seen)
    # Adjusted between two batches, or during one, which then began on the old clock.
    for within in (False, True):
        cut = steadily(batch(20, T0 + 20, 0.9, 20_000, 21_000, 21_000), jump)
        if within:
            cut |= {"start": T0 + 20, "durationMs": {"triggerExecution": max(0, round((0.9 + jump) * 1000))}}
        after = [
            steadily(batch(n, T0 + n, 0.9, 1000 * n, 1000 * n + 1000, 1000 * n + 1000), jump) for n in range(21, 24)
        ]
        for count, wanted in ((0, "clock"), (1, "two batches"), (3, "")):
            shown = run([*before, cut, *after[:count]], started=T0 - 60)
            seen = Snapshot(run=shown, now=T0 + 21.2 + count + jump, window=15.0, working=True, steady=1021.2 + count)
            if wanted:
                with pytest.raises(AnswerError, match=wanted):
                    arrivals(seen)
            else:
                assert arrivals(seen).value == pytest.approx(1000)
                assert throughput(seen).value == pytest.approx(1000, rel=0.2)


def test_a_batch_from_the_future_is_refused_and_a_clock_set_back_restarts_the_window() -> None:
    progress = [batch(n, T0 + n, 0.5, 10 * n, 10 * n + 10, 10 * n + 10) for n in range(10)]
    with pytest.raises(AnswerError, match="clock was set back"):
        lag(Snapshot(run=run(progress), now=T0 - 100, window=15.0, working=True))
    again = [batch(10 + n, T0 - 100 + n, 0.5, 100 + 10 * n, 110 + 10 * n, 110 + 10 * n) for n in range(3)]
    assert arrivals(Snapshot(run=run(progress + again), now=T0 - 97, window=15.0, working=True)).value == pytest.approx(
        10
    )


def test_the_error_of_a_query_that_ended_has_its_exception() -> None:
    ended = run([batch(0, T0, 1, 0, 10, 10)], terminated=T0 + 5, exception="boom")
    for compute in METRICS.values():
        with pytest.raises(AnswerError, match="ended 2 s ago: boom"):
            compute(Snapshot(run=ended, now=T0 + 7, window=15.0))
    with pytest.raises(AnswerError, match="not completed a batch"):
        lag(Snapshot(run=run([]), now=T0, window=15.0))


def test_batch_time_is_the_mean_duration() -> None:
    seen, _ = Query(steady(1000), most=300).until(40.0)
    assert batch_time(seen).value == pytest.approx(0.25 + 300 / 400)


def test_progress_reports_of_spark_are_parsed() -> None:
    progress = json.loads((DATA / "progress_stateful.json").read_text())
    known = TypeAdapter(Batch).validate_json(json.dumps(trim(progress, T0)))
    assert known.head == 4 * 4189 - 1
    assert known.done == 2796 * 3 + 2795
    assert known.left == 4 * 4189 - 1 - (2796 * 3 + 2795)
    assert known.records == 797
    assert known.length == pytest.approx(1.978)
    assert known.state_partitions == 4


def samples(*rows: tuple[float, int, int]) -> list[BusySample]:
    return [BusySample(at, {"0": (busy, 1, running)}) for at, busy, running in rows]


@pytest.mark.parametrize(
    ("seen", "share"),
    [
        (samples((0, 1000, 0)), None),
        (samples((0, 1000, 0), (10, 6000, 0)), 0.5),
        (samples((0, 1000, 0), (10, 26000, 0)), 1.0),  # counted when it ended
        (samples((0, 1000, 1), (5, 1000, 1), (10, 1000, 1)), 1.0),  # a long task is work, not idleness
        (samples((0, 1000, 0), (5, 6000, 1), (10, 6000, 1)), 1.0),
        (samples((0, 1000, 0), (10, 1000, 0)), 0.0),
        (samples((0, 5000, 0), (10, 1000, 0)), None),  # a counter that decreased is another executor's
        (
            [BusySample(0, {"0": (9000, 1, 0), "1": (0, 1, 0)}), BusySample(10, {"0": (100, 1, 0), "1": (6000, 1, 0)})],
            0.6,
        ),
        ([BusySample(0, {"0": (0, 1, 0)}), BusySample(10, {"7": (500, 1, 0)})], None),  # no executor in both
        # One died with its counter, and one has come: neither changes the rate of the others.
        ([BusySample(0, {"0": (0, 1, 0), "4": (9000, 1, 0)}), BusySample(10, {"0": (2000, 1, 0)})], 0.2),
        ([BusySample(0, {"0": (0, 1, 0)}), BusySample(10, {"0": (2000, 1, 0), "11": (9000, 1, 0)})], 0.2),
        (
            [BusySample(0, {"0": (0, 2, 0), "1": (0, 2, 0)}), BusySample(10, {"0": (9000, 2, 0), "1": (1000, 2, 0)})],
            0.25,
        ),
    ],
)
def test_busy_share_comes_from_the_counters(seen: list[BusySample], share: float | None) -> None:
    assert busy_share(seen) == (None if share is None else pytest.approx(share))


def test_times_of_the_rest_api_are_parsed() -> None:
    assert parse_time("1970-01-01T00:00:01.500GMT") == 1.5
    assert parse_time("yesterday") is None
    assert parse_time(None) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"app": ""}, "app: must be"),
        ({"report": "driver:4050"}, "report: must be an address"),
        ({"master": "spark://m:7077"}, "master: must be an address"),
        ({"driver": "http://d:port"}, "driver: must be an address"),
        ({"worker_conf": ("timeout=5",)}, "worker_conf: must be settings"),
        ({"report": "http://ann:hunter2@driver:4050"}, "report: must not contain a user or password"),
        ({"master": "http://m:8080/?app=1"}, "master: must be an address"),
        ({"report": "http://a..b:1"}, "report: must be an address"),
        ({"report": f"http://{'a' * 70}:1"}, "report: must be an address"),
        ({"report": "http://a b:1"}, "report: must be an address"),
        ({"report": "http://driver:4050\n"}, "report: must be an address"),
    ],
)
def test_invalid_parameters_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        Spark(**{"app": "a", "report": "http://h:1", **changes})
    assert "hunter2" not in str(raised.value)


def test_an_unknown_metric_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="lag, lag_seconds, arrivals, throughput, saturation, utilization, batch_time"):
        SparkQuery("cpu")
    assert {SparkQuery(metric).metric for metric in Metric} == set(Metric)


@given(
    rates=st.lists(st.floats(0, 2000), min_size=1, max_size=5),
    overhead=st.floats(0.05, 3),
    speed=st.floats(10, 2000),
    most=st.none() | st.integers(10, 5000),
    interval=st.sampled_from([0.0, 1.0, 5.0]),
    working=st.sampled_from([True, False, None]),
    later=st.floats(0, 50),
)
def test_no_metric_is_negative_or_invented_at_any_load(
    rates: list[float],
    overhead: float,
    speed: float,
    most: int | None,
    interval: float,
    working: bool | None,
    later: float,
) -> None:
    query = Query(lambda t: rates[int(t // 10) % len(rates)], overhead, speed, most, interval)
    seen, _ = query.until(40.0)
    seen = replace(seen, now=seen.now + later, working=working)
    for metric, compute in METRICS.items():
        try:
            value = compute(seen)
        except AnswerError:
            continue
        assert math.isfinite(value.value)
        assert value.value >= 0
        assert T0 <= value.at <= seen.now
        if metric is Metric.SATURATION:
            assert value.value <= 1


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1e6)), min_size=1, max_size=60), st.floats(1, 60))
def test_growth_lies_between_the_slowest_and_the_fastest_interval(
    steps: list[tuple[float, float]], window: float
) -> None:
    times = [0.0, *itertools.accumulate(dt for dt, _ in steps)]
    counts = [0.0, *itertools.accumulate(count for _, count in steps)]
    rate = growth(list(zip(times, counts, strict=True)), window)
    rates = [count / dt for dt, count in steps]
    assert rate is not None
    assert min(rates) * 0.999 - 1e-6 <= rate <= max(rates) * 1.001 + 1e-6


def test_a_query_on_files_with_record_counts_has_all_metrics_in_files() -> None:
    text = json.loads((DATA / "progress_files.json").read_text())
    idle_at = []
    for number in range(4):  # a burst of 40 files, 10 a batch, one batch a second
        entry = trim({**text, "batchId": number, "numInputRows": 10}, 0.0)
        source = {**entry["sources"][0], "rows": 10}
        entry |= {"start": T0 + number, "received": T0 + number + 0.9, "durationMs": {"triggerExecution": 900}}
        idle_at.append(entry | {"sources": with_row_positions([source], 10 * number, 30 - 10 * number)})
    left = run(idle_at[:3])
    seen = Snapshot(run=left, now=T0 + 2.9, window=15.0, working=True)
    assert lag(seen).value == 10
    assert arrivals(seen).value == 0
    assert throughput(seen).value == pytest.approx(10, rel=0.1)
    assert saturation(seen).value == pytest.approx(1.0)
    assert lag(Snapshot(run=run(idle_at), now=T0 + 3.9, window=15.0, working=True)).value == 0
