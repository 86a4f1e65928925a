"""Recommendations: sizes within the limits, matching reasons, numbers that people can read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autoscaler.policy_api import Reason, Recommendation, View

LARGEST = 1.7976931348623157e308  # the largest float: a sum of finite readings may overflow, an input must be finite
MOST = 2**31 - 1  # the largest size Kubernetes allows; a ratio may be infinite, a size must be finite
SCIENTIFIC_FROM = 1e15  # more digits are hard to read


def finite(value: float) -> float:
    """The value, or the largest float of its sign if it has overflowed."""
    return max(-LARGEST, min(value, LARGEST))


def whole(size: float) -> int:
    """Rounded up to a size that Kubernetes allows; a product like 21.000000000000004 counts as the whole number 21."""
    return math.ceil(max(0.0, min(size, MOST)) * (1 - 1e-12))


def format_number(value: float) -> str:
    """A number for people: 2,000 and 120 and 0.35; 1e+300 is not written out."""
    return f"{value:,.0f}" if 100 <= abs(value) < SCIENTIFIC_FROM else f"{value:.3g}"  # noqa: PLR2004 - three digits will do


def replicas(count: int) -> str:
    """A size for people: 1 replica, 3 replicas."""
    return "1 replica" if count == 1 else f"{count} replicas"


def are(count: int) -> str:
    """The verb after a size: 1 replica is, 3 replicas are."""
    return "is" if count == 1 else "are"


def sized(view: View, size: int, inputs: Mapping[str, float], detail: str) -> Recommendation:
    """Ask for a size, kept within the limits; the reason follows from the current size."""
    limits = view.limits
    if not limits.minimum <= size <= limits.maximum:
        size = limits.minimum if size < limits.minimum else limits.maximum
        detail = f"{detail}; {limits.minimum} to {limits.maximum} is allowed"
    if size > view.current:
        reason = Reason.ABOVE
    elif size < view.current:
        reason = Reason.BELOW
    else:
        reason = Reason.STEADY
    return Recommendation(size, reason, inputs, detail)


def missing(view: View, *names: str) -> Recommendation:
    """Abstain because these metrics cannot be trusted now, with the reason if the observation has one."""
    why = view.past[-1].missing if view.past else {}
    absent = ", ".join(f"{name} ({why[name]})" if name in why else name for name in names)
    return Recommendation(None, Reason.MISSING, {}, f"no trusted reading of {absent}")


def smallest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The smallest size from `low` that fits, found by bisection, or `high`, which is not tested.

    If `fits` tests a requirement, a stricter requirement never gives a smaller size, even if `fits` is not monotone in
    the size.
    """
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high
