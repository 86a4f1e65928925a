"""The members of a fleet after answers of its discovery."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.daemon.membership import Membership, accept
from autoscaler.ports import Member

CONFIRM = 300.0

answers = st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=12)
gaps = st.lists(st.sampled_from([0.0, 1.0, 10.0, 150.0, 299.0, 300.0, 1000.0]), min_size=12, max_size=12)


def found(names: str) -> list[Member]:
    return [Member(name, {"name": name}) for name in names]


def after(*seen: tuple[float, str], confirm: float = CONFIRM) -> Membership:
    """The membership after these answers, each a time in seconds and the ids that it contains."""
    membership = Membership()
    for now, names in seen:
        membership = accept(membership, found(names), now, confirm)
    return membership


@pytest.mark.parametrize(
    ("seen", "members", "held"),
    [
        pytest.param([], "", "", id="there is nobody before the first answer"),
        pytest.param([(0, "abc")], "abc", "", id="all are new"),
        pytest.param([(0, "abc"), (10, "abcd")], "abcd", "", id="one joins at once"),
        pytest.param([(0, "abc"), (10, "ab")], "ab", "", id="fewer than half leave at once"),
        pytest.param([(0, "abcde"), (10, "abc"), (20, "ab")], "ab", "", id="one after the other leaves at once"),
        pytest.param([(0, "abcd"), (10, "ab")], "abcd", "cd", id="half of them are held"),
        pytest.param([(0, "ab"), (10, "a")], "ab", "b", id="one of two is held"),
        pytest.param([(0, "a"), (10, "")], "a", "a", id="the last one is held"),
        pytest.param([(0, "abcd"), (10, "")], "abcd", "abcd", id="all of them are held"),
        pytest.param([(0, "abcd"), (10, ""), (309, "")], "abcd", "abcd", id="held for all of confirm"),
        pytest.param([(0, "abcd"), (10, ""), (310, "")], "", "", id="gone after confirm"),
        pytest.param([(0, "abcd"), (10, "ab"), (310, "ab")], "ab", "", id="half of them gone after confirm"),
        pytest.param([(0, "abcd"), (10, ""), (200, "abcd"), (310, "")], "abcd", "abcd", id="a return begins it anew"),
        pytest.param([(0, "abcdef"), (10, "ab"), (20, "abcde")], "abcdef", "f", id="the rest of a loss stays held"),
        pytest.param(
            [(0, "abcdef"), (10, "ab"), (20, "abcde"), (310, "abcde")], "abcde", "", id="the rest of a loss goes"
        ),
        pytest.param([(0, "abcd"), (10, "ab"), (309, "a"), (310, "a")], "ab", "b", id="each is held for itself"),
        pytest.param([(0, "ab"), (10, "cdefgh")], "abcdefgh", "ab", id="others instead of them"),
        pytest.param([(0, "ab"), (10, "cdefgh"), (20, "cdefgh")], "abcdefgh", "ab", id="new ones do not outvote them"),
    ],
)
def test_members_join_at_once_and_a_large_loss_must_last_before_it_counts(
    seen: Sequence[tuple[float, str]], members: str, held: str
) -> None:
    membership = after(*seen)
    assert "".join(sorted(membership.members)) == members
    assert "".join(sorted(membership.held)) == held


def test_without_a_confirmation_time_every_loss_counts_at_once() -> None:
    assert after((0, "abcd"), (10, ""), confirm=0.0) == Membership()


def test_a_missing_member_keeps_the_values_of_its_last_answer() -> None:
    first, second = Member("a", {"size": "1"}), Member("a", {"size": "2"})
    membership = accept(accept(Membership(), [first], 0.0, CONFIRM), [second], 10.0, CONFIRM)
    assert membership.members == {"a": second}
    assert accept(membership, [], 20.0, CONFIRM).members == {"a": second}


def test_of_two_members_with_one_id_the_first_counts() -> None:
    first, second = Member("a", {"size": "1"}), Member("a", {"size": "2"})
    assert accept(Membership(), [first, second], 0.0, CONFIRM).members == {"a": first}


@given(answers, gaps)
def test_found_members_are_always_kept_and_missing_ones_leave_only_for_a_reason(
    sets: list[set[str]], gaps: list[float]
) -> None:
    before, now = Membership(), 0.0
    missed: dict[str, float] = {}  # id -> the time of the first of its latest consecutive misses
    for names, gap in zip(sets, gaps, strict=False):
        now += gap
        after = accept(before, found("".join(sorted(names))), now, CONFIRM)
        missed = {key: missed.get(key, now) for key in before.members if key not in names}
        gone = set(before.members) - set(after.members)
        assert names <= set(after.members)
        assert set(after.members) == names | set(after.held)
        assert not gone & names
        large = 2 * len(missed) >= len(before.members)
        for key in gone:
            assert now - missed[key] >= CONFIRM or not (large or key in before.held)
        for key, since in after.held.items():
            assert since == missed[key]
            assert now - since < CONFIRM
        before = after
