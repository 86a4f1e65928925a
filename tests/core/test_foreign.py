"""What foreign code raises, in our words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autoscaler.core.foreign import MAX_TEXT, foreign_text, format_exception

from .build import Fixed, seen, spec
from .test_policy_hooks import Allows, Combines, Learns, decide


class Unspeakable(Exception):  # noqa: N818 - what it says is the point
    def __str__(self) -> str:
        raise SystemExit


def test_an_exception_is_shown_with_its_type_on_one_line() -> None:
    assert format_exception(ValueError("a\n  b")) == "ValueError: a b"
    assert format_exception(ValueError()) == "ValueError"
    assert foreign_text(5) == "5"


def test_a_long_text_is_cut_and_one_that_cannot_be_shown_is_said_to_be_so() -> None:
    text = foreign_text(ValueError("x" * 1_000_000))
    assert len(text) == MAX_TEXT
    assert text.endswith("x…")
    assert format_exception(Unspeakable()) == "Unspeakable: its text cannot be shown: SystemExit"


def raises(error: BaseException) -> Callable[..., Any]:
    def rule(*_: object) -> Any:
        raise error

    return rule


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit("over"), Unspeakable()])
def test_no_exception_of_a_policy_ends_a_step(error: BaseException) -> None:
    shown = format_exception(error)
    for policy, detail in (
        (Allows(raises(error)), f"raised {shown}"),
        (Learns(raises(error)), f"while learning it raised {shown}"),
    ):
        assert decide(spec(policy, Fixed(3)), seen(0, 2)).recommendations[0].detail == detail
    how = Combines(raises(error))
    assert "the policies cannot be combined" in decide(spec(Fixed(2), combine=how), seen(0, 8)).verdicts[0].detail


def test_ctrl_c_in_a_policy_is_no_failure_of_it() -> None:
    class Evaluates:
        def evaluate(self, view: object) -> Any:
            del view
            raise KeyboardInterrupt

    rule = raises(KeyboardInterrupt())
    for interrupted in (
        spec(Allows(rule)),
        spec(Learns(rule)),
        spec(Evaluates()),
        spec(Fixed(2), combine=Combines(rule)),
    ):
        with pytest.raises(KeyboardInterrupt):
            decide(interrupted, seen(0, 2))
