"""Decisions in a few words, for tables."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.core.model import Decision

FEW = 30
"""Rows of a list, unless all are asked for."""


def short(decision: Decision) -> str:
    """Why a decision is as it is, in a line: what the policy said whose size counted, and what a guard made of it."""
    asked = [one for one in decision.recommendations if one.replicas is not None]
    # The one whose size was proposed; where an expression made another of them all, the first that wanted a change.
    counted = [one for one in asked if one.replicas == decision.proposed] or [
        one for one in asked if one.replicas != decision.current
    ]
    said = [f"{one.policy}: {one.detail or one.reason.value}" for one in counted[:1]]
    changed = [verdict for verdict in decision.verdicts if verdict.before != verdict.after]
    made = [
        f"{verdict.guard.value} made {verdict.after} of {verdict.before}{f': {verdict.detail}' * bool(verdict.detail)}"
        for verdict in changed
    ]
    return "; ".join([*said, *made]) or decision.reason.value


def omitted(shown: Sequence[object], all_of_them: Sequence[object], what: str) -> list[str]:
    """A line that says how many were left out; none where none was."""
    rest = len(all_of_them) - len(shown)
    return [f"... and {rest} more {what}: --all lists them"] if rest else []


def clock(seconds: float) -> str:
    """A time since the beginning: 1:02:30."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
