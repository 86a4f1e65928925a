"""Exceptions of foreign code are turned into one-line messages."""

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


class Unspeakable(Exception):  # noqa: N818 - the text is the point
    def __str__(self) -> str:
        raise SystemExit


def test_an_exception_is_shown_with_its_type_on_one_line() -> None:
    assert format_exception(ValueError("a\n  b")) == "ValueError: a b"
    assert format_exception(ValueError()) == "ValueError"
    assert foreign_text(5) == "5"


def test_a_long_message_is_cut_and_an_unprintable_one_is_reported_as_such() -> None:
    text = foreign_text(ValueError("x" * 1_000_000))
    assert len(text) == MAX_TEXT
    assert text.endswith("x…")
    assert format_exception(Unspeakable()) == "Unspeakable: its text cannot be shown: SystemExit"


def test_a_lone_surrogate_in_the_text_of_a_policy_is_replaced_since_it_cannot_be_stored() -> None:
    decision = decide(spec(Fixed(Recommendation(3, Reason.ABOVE, {}, "file \udc80 of é"))), seen(0, 2))
    assert decision.recommendations[0].detail == "file ? of é"


def test_a_long_text_of_a_policy_is_cut() -> None:
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


def test_ctrl_c_inside_a_policy_is_not_a_failure_of_the_policy() -> None:
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
def test_a_secret_is_hidden_in_every_encoding(shown: str) -> None:
    mask = Mask()
    mask.hide(SECRET)
    assert mask(f'{{"Authorization": "Basic {shown}"}} <{shown}>').count("***") == 2
    text = mask(f"the server said: {shown}, twice: {shown}")
    assert text == "the server said: ***, twice: ***"


def test_short_values_and_other_texts_are_not_hidden() -> None:
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


def test_a_secret_that_is_not_valid_utf_8_is_hidden_too() -> None:
    """An environment variable may contain any bytes."""
    hide = Mask()
    hide.hide("pass\udcffword")
    assert hide("it was pass\udcffword") == "it was ***"
