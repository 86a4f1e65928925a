"""What foreign code raises, in our words."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from autoscaler.core import foreign
from autoscaler.core.foreign import MAX_TEXT, Mask, foreign_text, format_exception
from autoscaler.core.model import Allowance, Reason, Recommendation

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


def test_half_of_a_surrogate_pair_which_cannot_be_stored_is_replaced_in_what_a_policy_says() -> None:
    decision = decide(spec(Fixed(Recommendation(3, Reason.ABOVE, {}, "file \udc80 of é"))), seen(0, 2))
    assert decision.recommendations[0].detail == "file ? of é"


def test_what_a_policy_says_is_cut() -> None:
    decision = decide(spec(Fixed(Recommendation(3, Reason.ABOVE, {}, "x" * 1_000_000))), seen(0, 2))
    assert len(decision.recommendations[0].detail) == MAX_TEXT
    closed = Allows(lambda _, limits: Allowance(limits, "y" * 1_000_000))
    assert len(decide(spec(closed, Fixed(3)), seen(0, 2)).verdicts[-1].detail) < 2 * MAX_TEXT


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


SECRET = "pä ss\"w/rd+%&<'\nü"


@pytest.mark.parametrize(
    "shown",
    [
        SECRET,
        " ".join(SECRET.split()),
        repr(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(SECRET)[1:-1])[1:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        re.sub("%..", lambda code: code[0].lower(), quote(SECRET)),
        escape(SECRET),
        *(b64encode(f"{user}:{SECRET}".encode()).decode() for user in ("u", "us", "use", "prometheus")),
        *(urlsafe_b64encode(f"{user}:{SECRET}:more".encode()).decode() for user in ("u", "us", "use")),
    ],
)
def test_a_secret_is_hidden_however_it_is_written(shown: str) -> None:
    mask = Mask()
    mask.hide(SECRET)
    assert mask(f'{{"Authorization": "Basic {shown}"}} <{shown}>').count("***") == 2
    text = mask(f"the server said: {shown}, twice: {shown}")
    assert text == "the server said: ***, twice: ***"


def test_what_is_too_short_is_not_hidden_and_nothing_else_is() -> None:
    mask = Mask()
    mask.hide("", "abc", "abcd")
    mask.hide("abcd")
    assert mask("abc, YWJj and nothing") == "abc, YWJj and nothing"
    assert mask("xabcdx") == "x***x"


def test_a_secret_is_hidden_before_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Mask()
    hidden.hide("hunter22-hunter22")
    monkeypatch.setattr(foreign, "mask", hidden)
    assert "hunter" not in foreign_text("x" * (MAX_TEXT - 8) + "hunter22-hunter22")


def test_a_secret_that_is_no_text_is_hidden_all_the_same() -> None:
    """An environment variable may have any bytes."""
    hide = Mask()
    hide.hide("pass\udcffword")
    assert hide("it was pass\udcffword") == "it was ***"
