"""The log of scale events that the HPA controller keeps, to compare its rate limits with ours turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.policy_api import ZERO
from autoscaler_policies.hpa.rules import Event, ScalingRules


@dataclass(frozen=True, slots=True)
class LoggedEvent(Event):
    """A change of size in one direction; `outdated`: it was older than all periods when a later event was stored."""

    outdated: bool = False


def stored(change: int, events: Sequence[LoggedEvent], rules: ScalingRules | None) -> tuple[LoggedEvent, ...]:
    """The events of a direction after a change that happens now (storeScaleEvent, markScaleEventsOutdated).

    The new event replaces the last of those older than all periods; an HPA without `behavior` keeps none.
    """
    if rules is None:
        return tuple(events)
    longest = max((policy.period for policy in rules.policies), default=ZERO)
    marked = [replace(event, outdated=event.outdated or event.age > longest) for event in events]
    old = [index for index, event in enumerate(marked) if event.outdated]
    if old:
        marked[old[-1]] = LoggedEvent(change, ZERO)
        return tuple(marked)
    return (*marked, LoggedEvent(change, ZERO))
