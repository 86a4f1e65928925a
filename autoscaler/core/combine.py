"""Fifth stage: combine the recommendations into one proposal, and find out whether it may lower the size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.core.explain import hold_reason
from autoscaler.core.foreign import foreign_text
from autoscaler.core.model import MAX_REPLICAS, Combine, Recommendation
from autoscaler.core.rescale import Settled
from autoscaler.core.trust import Trusted


@dataclass(slots=True)
class Combined:
    """The size that the policies ask for together.

    Attributes:
        proposed: the size.
        error: why the configured combination could not be computed; None: it could.
        hold_reason: why the proposal must not lower the size (this error, or other input that cannot be trusted).
    """

    proposed: int
    error: str | None
    hold_reason: str | None


def combine(seen: Trusted, settled: Settled, recommendations: tuple[Recommendation, ...]) -> Combined:
    """Combine all recommendations into one proposal."""
    proposed, error = combined_size(recommendations, settled.current, seen.spec.combine)
    reason = hold_reason(seen.untrusted, recommendations, seen.observation.engine, settled.notes, error)
    return Combined(proposed, error, reason)


def combined_size(
    recommendations: tuple[Recommendation, ...], current: int, how: Combine | None = None
) -> tuple[int, str | None]:
    """The size that the policies ask for together, and why it cannot be trusted (None: it can).

    It is the largest size asked for, or the result of `how`; the current size if no policy asks for one. If `how`
    fails, it is the largest size asked for, and must not lower the size.
    """
    proposed = -1
    for recommendation in recommendations:
        replicas = recommendation.replicas
        if replicas is not None and replicas > proposed:
            proposed = replicas
    greatest = current if proposed < 0 else proposed
    if how is None:
        return greatest, None
    try:
        size = how.combine({asked.policy: asked.replicas for asked in recommendations}, current)
        if size is None:
            return current, None
        if 0 <= size <= MAX_REPLICAS:  # NaN is not
            # 1e-12: a product like 100 * 1.1 = 110.00000000000001 stands for a whole number
            return math.ceil(size * (1 - 1e-12)), None
        problem = f"they give {str(size)[:40]}, expected 0 to {MAX_REPLICAS}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - code of a plug-in: whatever it raises must not end a step
        problem = foreign_text(error) or type(error).__name__
    return greatest, f"the policies cannot be combined: {problem}"
