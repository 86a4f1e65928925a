"""Measures from the progress of a query, against a simulated query whose true values are known."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.spark_progress import Batch, Run, read_batch
from autoscaler.injob.reactive import measures
from autoscaler.injob.reactive.measures import KEPT, Meter, Meters
from autoscaler.injob.reactive.snapshot import Executor, Measures
from tests.sources.test_spark import T0, Query, batch, steady

PROGRESS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "sources" / "data" / "progress_stateful.json").read_text()
)


def started(interval: float = 0.0) -> Meter:
    trigger = f"ProcessingTimeTrigger({round(interval * 1000)})"
    run = Run(query="query", run="run", trigger=trigger, started=T0)
    return Meter(run=run, begun=0.0, read=0.0)


def followed(meter: Meter, batches: Sequence[Batch], changes: Sequence[float] = ()) -> list[Measures]:
    """The measures at the end of each batch, from the first complete one on."""
    found = []
    for each in batches:
        meter = meter.after(replace(each, steady=each.received - T0), changes)
        found += [meter.measures] if meter.measures else []
    return found


def simulated(rate: float, end: float, **query: Any) -> tuple[list[Measures], Query]:
    truth = Query(steady(rate), **query)
    shown, _ = truth.until(end)
    return followed(started(query.get("interval", 0.0)), shown.run.progress), truth


def between(first: Measures, last: Measures) -> tuple[float, float]:
    """Records per second and busy share, from the sums."""
    assert first.records is not None
    assert last.records is not None
    assert first.busy is not None
    assert last.busy is not None
    seconds = last.age - first.age
    return (last.records - first.records) / seconds, (last.busy - first.busy) / seconds


def test_the_sums_grow_while_the_query_reads_and_works() -> None:
    found, _ = simulated(100, 60, interval=2.0)
    rate, busy = between(found[5], found[-1])
    assert rate == pytest.approx(100, rel=0.02)
    assert busy == pytest.approx((0.25 + 200 / 400) / 2, rel=0.05), "of the interval of its trigger"
    assert found[-1].rate == pytest.approx(100, rel=0.05)
    assert found[-1].busy_share == pytest.approx(busy, rel=0.05)


def test_a_query_at_its_read_limit_that_leaves_records_is_busy_all_the_time() -> None:
    found, truth = simulated(1000, 60, most=400)
    rate, busy = between(found[5], found[-1])
    assert rate == pytest.approx(400 / 1.25, rel=0.02), "its capacity"
    assert busy == pytest.approx(1, abs=0.01)
    waiting = truth.head(found[-1].age) - (found[-1].records or 0)
    assert found[-1].pending == pytest.approx(waiting, rel=0.02)


def test_consecutive_batches_at_low_load_are_not_busy() -> None:
    found, _ = simulated(20, 25)
    _, busy = between(found[30], found[-1])
    assert busy < 0.3


def test_the_time_between_separate_batches_is_idle() -> None:
    lengths = [0.25, 2.0] * 4
    batches = [
        batch(number, T0 + 5 * number, length, 400 * number, 400 * number + round(200 * length), 400 * (number + 1))
        for number, length in enumerate(lengths)
    ]
    found = followed(started(), [read_batch(each) for each in batches])
    first, last = found[0], found[-1]
    _, busy = between(first, last)
    assert 0 < busy < sum(lengths[2:]) / (5 * 6), "no more than the batches themselves"
    assert all(each.busy_share is not None and each.busy_share <= 2.1 / 5 for each in found[1:])


def test_the_backlog_at_the_end_of_a_batch_arrived_while_it_ran() -> None:
    found, _ = simulated(100, 60, interval=2.0)
    assert found[-1].pending == pytest.approx(100 * (0.25 + 200 / 400 + 0.1), rel=0.05)


def test_throughput_and_backlog_growth_of_the_same_moment_give_the_arrivals() -> None:
    found, _ = simulated(1000, 60, most=400)
    first, last = found[5], found[-1]
    assert first.pending is not None
    assert last.pending is not None
    rate, _ = between(first, last)
    assert rate + (last.pending - first.pending) / (last.age - first.age) == pytest.approx(1000, rel=0.01)


def test_a_query_without_work_gets_older_and_is_idle() -> None:
    shown, _ = Query(lambda t: 100.0 if t < 10 else 0.0).until(30)
    meter = started()
    for each in shown.run.progress:
        meter = meter.after(replace(each, steady=each.received - T0), ())
    last = shown.run.progress[-1].received
    found = meter.idle(last + 10, last + 10 - T0, ()).measures
    assert found is not None
    assert (found.busy_share, found.pending) == (0.0, 0.0)
    assert found.records == 1000
    assert found.idle == pytest.approx(10)
    assert found.age == pytest.approx(last + 10 - T0)


def test_a_query_that_never_had_work_has_read_nothing_and_may_have_a_lag() -> None:
    found = started().idle(T0 + 10, 10.0, ()).measures
    assert found == Measures(
        age=10.0, busy=0.0, busy_share=0.0, records=0, rate=0.0, pending=None, written=0, idle=10.0
    )


def test_without_offsets_the_lag_is_unknown() -> None:
    batches = [batch(n, T0 + 3 * n, 2.0, 100 * n, 100 * (n + 1), None) for n in range(5)]
    found = followed(started(), [read_batch(each) for each in batches])
    assert [each.pending for each in found] == [None] * 4
    assert found[-1].records == 500


@pytest.mark.parametrize("reports", [True, False], ids=["seconds", "files"])
def test_offsets_of_something_else_are_not_taken_for_records(*, reports: bool) -> None:
    batches = [batch(n, T0 + 3 * n, 2.0, n, n + 1, n + 1 if reports else None, rows=500) for n in range(5)]
    assert followed(started(), [read_batch(each) for each in batches])[-1].records == 2500


def test_the_busy_share_of_consecutive_batches_with_an_unreported_backlog_is_unknown() -> None:
    batches = [read_batch(batch(n, T0 + 2 * n, 2.0, n, n + 1, None, rows=500)) for n in range(5)]
    found = followed(started(), batches)[-1]
    assert (found.busy, found.busy_share, found.records) == (None, None, 2500)
    meter = started()
    for each in batches:
        meter = meter.after(replace(each, steady=each.received - T0), ())
    measures = meter.idle(T0 + 40, 40.0, ()).measures
    assert measures is not None
    assert measures.busy == pytest.approx(10, abs=0.2), "it may have been busy all the time until then"
    assert measures.busy_share == 0


def test_the_first_batch_is_too_cold_to_show_the_busy_share() -> None:
    shown, _ = Query(steady(100), interval=2.0).until(20)
    first, second = (replace(each, steady=each.received - T0) for each in shown.run.progress[:2])
    cold = started(2.0).after(first, ())
    assert cold.measures is None
    whole = cold.after(second, ()).measures
    assert whole is not None
    assert whole.records == (first.records or 0) + (second.records or 0)
    assert whole.busy == pytest.approx((whole.busy_share or 0) * whole.age)


def test_while_executors_change_the_share_is_unknown_and_the_sums_continue() -> None:
    shown, _ = Query(steady(100), interval=2.0).until(20)
    *before, last = shown.run.progress
    meter = started(2.0)
    for each in before:
        meter = meter.after(replace(each, steady=each.received - T0), ())
    # The change takes so long that no batch has ended in the last seconds before it.
    late = replace(last, durations={"triggerExecution": 20_000}, received=last.start + 20.1)
    changed = meter.after(replace(late, steady=late.received - T0), [late.start + 10]).measures
    assert meter.measures is not None
    assert changed is not None
    assert changed.busy_share is None
    assert changed.records == (meter.records or 0) + (last.records or 0)
    _, busy = between(meter.measures, changed)
    assert busy == pytest.approx(meter.share, rel=0.1)


def test_short_batches_are_counted_at_once_and_measured_every_two_seconds() -> None:
    found, _ = simulated(100, 20)
    assert len({each.age for each in found}) <= 20 / measures.EVERY + 1
    assert found[-1].records == pytest.approx(2000, rel=0.15)


def test_adjusting_the_clock_makes_no_query_younger() -> None:
    shown, _ = Query(steady(100), interval=2.0).until(20)
    back = [replace(each, start=each.start - 3600, received=each.received - 3600) for each in shown.run.progress[5:]]
    meter = started(2.0)
    ages = []
    for number, each in enumerate([*shown.run.progress[:5], *back]):
        meter = meter.after(replace(each, steady=2.0 * (number + 1)), ())
        ages += [meter.measures.age] if meter.measures else []
    assert ages == pytest.approx([2.0 * (number + 2) for number in range(len(ages))])


def test_only_a_few_batches_are_kept() -> None:
    meter = started()
    for number in range(3 * KEPT):
        each = read_batch(batch(number, T0 + number, 0.9, number, number + 1, number + 1))
        meter = meter.after(replace(each, steady=float(number)), ())
    assert len(meter.run.progress) == KEPT
    assert meter.records == 3 * KEPT


# the input of Spark's listener


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Meters:
    monkeypatch.setattr(measures, "read_trigger", lambda *_: "ProcessingTimeTrigger(2000)")
    return Meters(None, lambda: [Executor(id="0", address="a:1", slots=1, added=1.0)])


def progressed(number: int, **changes: Any) -> dict[str, Any]:
    offsets = {"startOffset": {"0": 100 * number}, "endOffset": {"0": 100 * number + 100}, "latestOffset": {"0": 700}}
    source = {**PROGRESS["sources"][0], **offsets, "numInputRows": 100}
    return {
        **PROGRESS,
        "batchId": number,
        "timestamp": datetime.fromtimestamp(time.time() - 60 + 2 * number, UTC).isoformat(),
        "durationMs": {"triggerExecution": 100},
        "numInputRows": 100,
        "sources": [source],
        **changes,
    }


def test_progress_of_spark_is_converted_to_measures(meters: Meters) -> None:
    event_time = {"watermark": "2026-11-21T02:12:00.000Z"}
    meters.ended(progressed(0))
    assert meters.seen(PROGRESS["runId"]) is None
    meters.ended(progressed(1, eventTime=event_time))
    found = meters.seen(PROGRESS["runId"])
    assert found is not None
    assert (found.records, found.written, found.idle) == (200, 400, 0.0)
    assert found.pending == pytest.approx(500, abs=1)
    assert found.watermark == datetime(2026, 11, 21, 2, 12, tzinfo=UTC).timestamp()


def test_a_sink_that_does_not_count_and_a_watermark_before_the_first_record_are_unknown(meters: Meters) -> None:
    event_time = {"watermark": "1970-01-01T00:00:00.000Z"}
    meters.ended(progressed(0, eventTime=event_time, sink={"numOutputRows": -1}))
    meters.ended(progressed(1, eventTime=event_time))
    found = meters.seen(PROGRESS["runId"])
    assert found is not None
    assert (found.written, found.watermark) == (None, None)


def test_an_idle_query_and_a_finished_one(meters: Meters) -> None:
    assert meters.seen("run") is None
    meters.idle("query", "run")
    found = meters.seen("run")
    assert found is not None
    assert replace(found, age=0, idle=0) == Measures(
        age=0, busy=0.0, busy_share=0.0, records=0, rate=0.0, written=0, pending=None
    )
    meters.terminated("run")
    meters.terminated("run")
    assert meters.seen("run") is None


def test_unparseable_progress_does_no_harm_and_is_logged_once(meters: Meters, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        meters.ended(progressed(0, timestamp="yesterday"))
        meters.ended({})
        meters.idle("query", None)  # type: ignore[arg-type]  # what is not Spark's
    assert [record.levelno for record in caplog.records if record.levelno > logging.DEBUG] == [logging.WARNING]
    meters.ended(progressed(1))
    meters.ended(progressed(2))
    assert meters.seen(PROGRESS["runId"]) is not None
