"""Rules of Flink's autoscaler that nothing here runs by themselves: tests put whole published cases together "
"with them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta

from autoscaler.core.dataflow import Samples, TargetRate, average, divided, in_order, rate

SECOND = timedelta(seconds=1)


def busy_time(
    aggregator: str, load: Iterable[float | None] = (), accumulated: Samples = (), parallelism: int = 1
) -> float:
    """Busy ms per second of a vertex over a window: `ScalingMetricEvaluator.computeBusyTimeAvg`.

    Args:
        aggregator: MAX and MIN average `load`; AVG takes the growth of `accumulated` per subtask.
        load: busy share (0 to 1) of the busiest (MAX) or least busy (MIN) subtask at each time.
        accumulated: accumulated busy ms of all subtasks together.
        parallelism: the number of subtasks.
    """
    if aggregator == "AVG":
        return divided(rate(accumulated), parallelism)
    return average(load) * 1000


def input_rate(aggregator: str, records_in: Samples, per_second: Iterable[float | None] = ()) -> float:
    """Records/s to relate to the busy time: `ScalingMetricEvaluator.computeTprInputRate`.

    The estimate is like that of the busy time: for MAX and MIN the mean of the measured rates (`per_second`), or the
    growth of the counter if there are none; for AVG always the growth of the counter `records_in`.
    """
    if aggregator == "AVG":
        return rate(records_in)
    mean = average(per_second)
    return mean if math.isfinite(mean) else rate(records_in)


def source_rate(records_in: Samples, lag: Samples, catch_up: timedelta) -> TargetRate:
    """The target rate of a source: `ScalingMetricEvaluator.computeTargetDataRate`, its part for sources.

    It is the input rate plus the growth of the lag. If Flink gives up ("Cannot evaluate metrics without ingestion rate
    information"), the rate is NaN.

    Args:
        records_in: the counter of its records.
        lag: its lag at the same times. No samples mean that the source reports no lag: Flink then assumes none.
        catch_up: the time in which to process the lag, in whole seconds; 0 adds nothing for it.
    """
    lags = in_order(lag)
    grows = rate(lags) if lags else 0.0
    offered = rate(records_in) + grows
    seconds = catch_up // SECOND
    waiting = lags[-1][1] if lags else 0.0
    return TargetRate(offered if math.isnan(offered) else max(0.0, offered), waiting / seconds if seconds else 0.0)
