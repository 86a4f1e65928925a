"""Checks of parameters, with the same words in all policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from autoscaler.policy_api import ZERO, ParameterError

Check = tuple[Callable[[Any], bool], str]
"""A test of a value, and the text of what is expected. None, for a parameter that allows it, passes."""

METRIC: Check = (bool, "the name of a metric")
ABOVE_0S: Check = (lambda span: span > ZERO, "above 0s")
FROM_0S: Check = (lambda span: span >= ZERO, "0s or more")
FINITE: Check = (math.isfinite, "a finite number")
ABOVE_0: Check = (lambda value: math.isfinite(value) and value > 0, "a finite number above 0")
FROM_0: Check = (lambda value: math.isfinite(value) and value >= 0, "a finite number of 0 or more")
ABOVE_0_TO_1: Check = (lambda value: 0 < value <= 1, "above 0 to 1")


def at_least(count: int) -> Check:
    """A check that a whole number is at least `count`."""
    return (lambda value: value >= count, f"{count} or more")


def check(policy: object, names: str, good: Callable[[Any], bool], expected: str) -> None:
    """Raise ParameterError for the first of these parameters (names separated by spaces) that fails the check."""
    for name in names.split():
        value = getattr(policy, name)
        if value is not None and not good(value):
            shown = f"{value.total_seconds():g}s" if isinstance(value, timedelta) else f"{value!s:.60}" or "empty"
            raise ParameterError(name, f"is {shown}, expected {expected}")
