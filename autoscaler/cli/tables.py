"""Decisions in a few words, for tables."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.core.model import Decision

DEFAULT_ROWS = 30
"""Rows of a list without --all."""


def summarize_decision(decision: Decision) -> str:
    """Why a decision is as it is, in a line: the policy whose size counted, and how the guards changed that size."""
    asked = [one for one in decision.recommendations if one.replicas is not None]
    # The one whose size was proposed; where an expression combined them into another, the first that asked for a
    # change.
    counted = [one for one in asked if one.replicas == decision.proposed] or [
        one for one in asked if one.replicas != decision.current
    ]
    parts = [f"{one.policy}: {one.detail or one.reason.value}" for one in counted[:1]]
    for verdict in decision.verdicts:
        if verdict.before != verdict.after:
            detail = f": {verdict.detail}" * bool(verdict.detail)
            parts.append(f"{verdict.guard.value} changed {verdict.before} to {verdict.after}{detail}")
    return "; ".join(parts) or decision.reason.value


def omitted_rows(shown: Sequence[object], rows: Sequence[object], what: str) -> list[str]:
    """A line with the number of rows that were left out; no line if none was."""
    rest = len(rows) - len(shown)
    return [f"... and {rest} more {what}: --all lists them"] if rest else []


def format_elapsed(seconds: float) -> str:
    """A time since the beginning: 1:02:30."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
