"""The members of a fleet: those that its discovery finds, and missing ones whose loss is not certain yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.ports import Member


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a fleet after an answer of its discovery.

    Attributes:
        members: the members by their ids, each with the values of the last answer that contained it.
        held: ids of missing members that are kept until their loss is certain -> the time, in seconds, of the first
            answer without them.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)

    def without(self, ids: Collection[str]) -> Membership:
        """The membership without these members."""
        members = {key: member for key, member in self.members.items() if key not in ids}
        return Membership(members, {key: since for key, since in self.held.items() if key not in ids})


def accept(before: Membership, found: Iterable[Member], now: float, confirm: float) -> Membership:
    """The members after an answer of the discovery.

    New members join at once. If fewer than half of all members are missing, they leave at once: that is normal. If half
    or more are missing (including the only member, or one of two), the discovery probably does not see all members.
    Then each missing member stays until it has been missing in every answer for `confirm`, even if others return
    meanwhile.

    Args:
        before: the members before. Failed answers do not change them.
        found: the members in the answer; of two with the same id the first one counts.
        now: the time of the answer in seconds, by a monotonic clock.
        confirm: seconds that a large loss must last.
    """
    answer: dict[str, Member] = {}
    for member in found:
        answer.setdefault(member.id, member)
    missing = [key for key in before.members if key not in answer]
    uncertain = 2 * len(missing) >= len(before.members)
    held = {key: before.held.get(key, now) for key in missing if uncertain or key in before.held}
    held = {key: since for key, since in held.items() if now - since < confirm}
    members = {key: answer.pop(key, member) for key, member in before.members.items() if key in answer or key in held}
    return Membership(members | answer, held)
