"""The learned state of a cluster, as numbers and for charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import fmean, median

from autoscaler.core.capacity import restart_time, source_partitions
from autoscaler.core.model import ClusterSpec, ClusterState
from autoscaler.core.workload_profile import MONDAY_S, Profile, Season, seasonal_value
from autoscaler.daemon.workload import capacity_at

MOST_SIZES = 40
"""About how many sizes the capacity curve has: a curve needs no more."""


def learned_document(
    spec: ClusterSpec,
    state: ClusterState,
    took: Sequence[tuple[int, int, float]],
    profile: Profile | None,
    now: datetime,
) -> dict[str, object]:
    """The learned state, with ages instead of times and medians instead of lists; and data for charts.

    `took`: for each of the last rescales, the size before, the size after, and the seconds until it had settled.
    """
    learned, seconds = state.learned, now.timestamp()
    return {
        "capacity": [
            {"replicas": size, "rate": seen.rate, "age": (now - seen.at).total_seconds(), "samples": seen.samples}
            for size, seen in sorted(learned.capacity.items())
        ],
        "durations": {
            direction.value: {
                "phases": {
                    phase.value: {"median": median(last), "samples": len(last)}
                    for phase, last in phases.items()
                    if last
                },
                "restart": restart_time(learned, direction),
            }
            for direction, phases in learned.durations.items()
        },
        "memory": {
            policy: {
                "numbers": {name: number for name, number in memory.items() if not name.endswith("_at")},
                "ages": {
                    name.removesuffix("_at"): seconds - number
                    for name, number in memory.items()
                    if name.endswith("_at")
                },
            }
            for policy, memory in learned.memory.items()
        },
        "capacity_by_size": _capacity_by_size(spec, state),
        "rescale_seconds": [list(each) for each in took],
        "week": None if profile is None or profile.season is None else _week(profile.season),
    }


def _capacity_by_size(spec: ClusterSpec, state: ClusterState) -> list[tuple[int, float, int]]:
    """(size, records/s, samples + 1) for sizes spread over the allowed range and for all observed sizes."""
    least, most = max(spec.limits.minimum, 1), spec.limits.maximum
    step = max(1, -(-(most - least) // MOST_SIZES))
    engine = state.past[-1].engine if state.past else None
    partitions = source_partitions(spec, engine, state.past)
    found = []
    for size in sorted({*range(least, most + 1, step), most, *state.learned.capacity}):
        rate = capacity_at(spec, state.learned, size, partitions)
        seen = state.learned.capacity.get(size)
        if rate is not None:
            found.append((size, rate, 1 + (0 if seen is None else seen.samples)))
    return found


def _week(season: Season) -> list[tuple[int, float]] | None:
    """Hour of the week (from Monday 0:00 UTC), and its usual arrivals relative to the mean of the week."""
    usual = [seasonal_value(season.usual, MONDAY_S + 3600 * hour + 1800) for hour in range(7 * 24)]
    mean = fmean(usual)
    return [(hour, rate / mean) for hour, rate in enumerate(usual)] if mean > 0 else None
