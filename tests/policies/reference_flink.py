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
        aggregator: MAX and MIN average `load`; AVG takes the growth of `accumulated` for each subtask.
        load: busy share (0 to 1) of the busiest (MAX) or idlest (MIN) subtask at each time.
        accumulated: accumulated busy ms of all subtasks together.
        parallelism: how many subtasks that are.
    """
    if aggregator == "AVG":
        return divided(rate(accumulated), parallelism)
    return average(load) * 1000


def input_rate(aggregator: str, records_in: Samples, per_second: Iterable[float | None] = ()) -> float:
    """Records/s to hold against the busy time: `ScalingMetricEvaluator.computeTprInputRate`.

    It must be estimated as the busy time is: for MAX and MIN the mean of the rates read (`per_second`), and the growth
    of the counter only where there is none; for AVG always the growth of the counter `records_in`.
    """
    if aggregator == "AVG":
        return rate(records_in)
    mean = average(per_second)
    return mean if math.isfinite(mean) else rate(records_in)


def source_rate(records_in: Samples, lag: Samples, catch_up: timedelta) -> TargetRate:
    """What a source is offered: `ScalingMetricEvaluator.computeTargetDataRate`, its part for sources.

    It is offered what it takes in and what its lag grows by. Where Flink gives up ("Cannot evaluate metrics without
    ingestion rate information") the rate is NaN.

    Args:
        records_in: the counter of its records.
        lag: its lag at the same times. No sample at all is a source that does not report it: Flink then counts no lag.
        catch_up: in what time the lag is to be gone, in whole seconds; 0 asks for nothing on top.
    """
    lags = in_order(lag)
    grows = rate(lags) if lags else 0.0
    offered = rate(records_in) + grows
    seconds = catch_up // SECOND
    waiting = lags[-1][1] if lags else 0.0
    return TargetRate(offered if math.isnan(offered) else max(0.0, offered), waiting / seconds if seconds else 0.0)
