"""A recorded trail of verdicts is short, and the same trail comes back from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import Reason, Verdict
from autoscaler.trace.verdict_trail import restored, shortened

QUIET = tuple(Verdict(reason, 8, 8, reason) for reason in (Reason.FRESHNESS, Reason.CAP, Reason.BOUNDS))
CAPPED = (QUIET[0], Verdict(Reason.CAP, 8, 6, Reason.CAP, "12 slots"), Verdict(Reason.BOUNDS, 6, 6, Reason.BOUNDS))
WAITS = (QUIET[0], Verdict(Reason.CAP, 8, 8, Reason.CAP, "it waits"), QUIET[2])
MISSED = (Verdict(Reason.FRESHNESS, 8, 8, Reason.MISSING), *QUIET[1:])


@pytest.mark.parametrize(
    ("trail", "telling"),
    [((), ()), (QUIET, ()), (CAPPED, CAPPED[1:2]), (WAITS, WAITS[1:2]), (MISSED, MISSED[:1])],
    ids=["no guard was asked", "all let it pass", "one changed it", "one had something to say", "another reason"],
)
def test_a_shortened_trail_names_all_guards_and_keeps_verdicts_with_information(
    trail: tuple[Verdict, ...], telling: tuple[Verdict, ...]
) -> None:
    assert shortened(trail, 8) == (tuple(verdict.guard for verdict in trail), telling)
    assert restored(*shortened(trail, 8), 8) == trail


@pytest.mark.parametrize(
    "trail", [CAPPED[::2], (QUIET[1], CAPPED[1]), (*QUIET, QUIET[0], WAITS[1])], ids=["torn", "twice", "twice at last"]
)
def test_a_trail_that_does_not_follow_from_its_names_is_kept_unchanged(trail: tuple[Verdict, ...]) -> None:
    assert shortened(trail, 8) == ((), trail)
    assert restored((), trail, 8) == trail


reasons = st.sampled_from([Reason.CAP, Reason.BOUNDS, Reason.MISSING])
sizes = st.integers(0, 3)


@given(st.lists(st.builds(Verdict, reasons, sizes, sizes, reasons, st.sampled_from(["", "so"]))), sizes)
def test_every_trail_survives_shortening(trail: list[Verdict], proposed: int) -> None:
    assert restored(*shortened(trail, proposed), proposed) == tuple(trail)


@pytest.mark.parametrize(
    ("names", "telling"),
    [
        ([Reason.CAP], [Verdict(Reason.BOUNDS, 3, 1, Reason.BOUNDS, "at most 1")]),
        ([Reason.CAP, Reason.BOUNDS], [CAPPED[1], CAPPED[1]]),
        ([Reason.CAP, Reason.CAP], [CAPPED[1]]),
    ],
    ids=["a verdict of an unknown guard", "two verdicts of one", "one twice"],
)
def test_what_contradicts_itself_makes_no_trail(names: list[Reason], telling: list[Verdict]) -> None:
    with pytest.raises(ValueError, match="a guard has a verdict but is not among the names in guards, or occurs twice"):
        restored(names, telling, 8)
