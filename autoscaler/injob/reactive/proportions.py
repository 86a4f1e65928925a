"""Divide the slots of one job among its queries: proportions, implemented by pools of Spark's FAIR scheduler.

Each query has a pool. Spark divides the slots by weight among the pools that have tasks. Pools below their minimum come
first. A pool has no upper limit: it also uses the slots that no other pool wants. Only a query whose stages have no
more tasks than its maximum never exceeds that maximum: see `most`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SCALE = 1000
"""Spark's weights are whole numbers, so shares are expressed in thousandths of the slots."""

EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Pool:
    """The settings of a query's pool in Spark's FAIR scheduler.

    Attributes:
        weight: the query's share of the slots in thousandths, 1 or more.
        least: Spark's minShare: slots that the pool gets before weights count.
    """

    weight: int
    least: int


def problems(proportions: Any) -> Iterator[str]:  # noqa: ANN401 - whatever its author gave
    """List the problems of proportions, one sentence each.

    Args:
        proportions: min, target and max of each query, by query name.
    """
    if not isinstance(proportions, Mapping) or not proportions:
        yield (
            f"proportions: is {proportions!r:.80}, expected shares of the slots by query, as "
            '{"orders": (0.2, 0.5, 0.8)}; correct or remove it'
        )
        return
    known: list[tuple[float, float, float]] = []
    for name, given in proportions.items():
        if not _is_proportion(given) or not isinstance(name, str) or not name:
            yield (
                f"proportions: of {name!r:.80} is {given!r:.80}, expected min, target and max, each from 0 to 1 and "
                "the target above 0; correct it"
            )
            continue
        least, target, most = given
        known.append((least, target, most))
        if not least <= target <= most:
            yield (
                f"proportions: of {name!r:.80} has min {least:g}, target {target:g} and max {most:g}, which are not in "
                "this order; lower the one before or raise the one after"
            )
    for what, total in (("min", sum(one[0] for one in known)), ("target", sum(one[1] for one in known))):
        if total > 1 + EPSILON:
            yield f"proportions: the {what} of all queries is {total:g} together, above 1; lower some of them"


def shares(proportions: Mapping[str, tuple[float, float, float]]) -> dict[str, float]:
    """The share of the slots that each query gets while all queries have tasks.

    A query gets its target. What the targets leave free is divided in proportion to the targets, up to each maximum.
    """
    found = {name: target for name, (_, target, _) in proportions.items()}
    for _ in proportions:  # in each iteration at least one query reaches its maximum, or nothing is left
        left = 1 - sum(found.values())
        below = {name: one[1] for name, one in proportions.items() if found[name] < one[2] - EPSILON}
        if left <= EPSILON or not below:
            break
        whole = sum(below.values())
        for name, target in below.items():
            found[name] = min(proportions[name][2], found[name] + left * target / whole)
    return found


def pools(proportions: Mapping[str, tuple[float, float, float]], slots: int) -> dict[str, Pool]:
    """The pool of each query if the job has `slots` slots; a minimum above 0 is at least one slot."""
    return {
        name: Pool(
            weight=max(1, round(share * SCALE)),
            least=max(math.floor(proportions[name][0] * slots + EPSILON), proportions[name][0] > 0),
        )
        for name, share in shares(proportions).items()
    }


def most(proportions: Mapping[str, tuple[float, float, float]], slots: int) -> dict[str, int]:
    """The tasks that each query may run at once if the job has `slots` slots: max rounded down, 1 or more."""
    return {name: max(1, math.floor(one[2] * slots + EPSILON)) for name, one in proportions.items()}


def shown(proportions: Mapping[str, tuple[float, float, float]]) -> str:
    """Format proportions as one line: name min/target/max."""
    return ", ".join(f"{name} {least:g}/{target:g}/{most:g}" for name, (least, target, most) in proportions.items())


def _is_proportion(given: object) -> bool:
    return (
        isinstance(given, tuple | list)
        and len(given) == len(("min", "target", "max"))
        and all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= 1 for one in given)
        and given[1] > 0
    )
