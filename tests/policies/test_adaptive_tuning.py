"""The constants of the default policy are few, in one place, and each has a description."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from autoscaler_policies.adaptive import tuning
from autoscaler_policies.adaptive.tuning import Tuning

ROOM = Path(tuning.__file__).parent
MOST = 25
UNITS = {"MINUTE_S", "VERSION"}


def numbers() -> Iterator[str]:
    """Names of the numeric constants at the top of the modules of the room."""
    for path in ROOM.glob("*.py"):
        for each in ast.parse(path.read_text()).body:
            target = (
                each.targets[0]
                if isinstance(each, ast.Assign)
                else each.target
                if isinstance(each, ast.AnnAssign)
                else None
            )
            value = getattr(each, "value", None)
            if (
                isinstance(target, ast.Name)
                and isinstance(value, ast.Constant)
                and isinstance(value.value, int | float)
            ):
                yield target.id


def test_there_are_at_most_25_constants_and_all_are_in_one_place() -> None:
    assert len(fields(Tuning)) <= MOST
    assert set(numbers()) == UNITS


def test_each_constant_has_a_description() -> None:
    (found,) = [each for each in ast.parse(Path(tuning.__file__).read_text()).body if isinstance(each, ast.ClassDef)]
    body = found.body[1:]
    assert len(body) == 2 * len(fields(Tuning))
    for value, description in zip(body[::2], body[1::2], strict=True):
        assert isinstance(value, ast.AnnAssign)
        assert isinstance(description, ast.Expr)
        assert isinstance(description.value, ast.Constant)
