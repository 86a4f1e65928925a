"""The keys of a plug-in, as `autoscaler plugins NAME` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

import pytest

from autoscaler.config import build
from autoscaler.config.keys import Key, keys
from autoscaler.plugins import Description, installed, load


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    """Inside.

    Attributes:
        share: how much, 0 to 1; default 0.5.
        colour: which; default red.
    """

    share: float = 0.5
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Outer:
    """Outside.

    Attributes:
        name: what it is called by people.
        many: several of them.
    """

    name: str
    many: tuple[Inner, ...] = (Inner(1.0),)
    one: Inner = Inner(0.25, Colour.BLUE)
    maybe: Inner | None = None
    wait: timedelta = timedelta(seconds=90)
    flag: bool = True
    text: str = ""
    factor: float = 100000.0
    labels: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, Inner] = field(default_factory=dict)
    hidden: int = field(default=3, init=False)


def test_each_key_has_its_type_its_default_and_its_description() -> None:
    found = {key.path: key for key in keys(Outer)}
    assert found["name"] == Key("name", "a string", "required", "what it is called by people.")
    assert found["maybe.share"] == Key("maybe.share", "a number", "0.5", "how much, 0 to 1; default 0.5.")
    assert found["maybe.colour"].takes == "one of red, blue"
    assert {path: key.default for path, key in found.items()} == {
        "name": "required",
        "many": "[{share: 1.0, colour: red}]",
        "many[].share": "0.5",
        "many[].colour": "red",
        "one": "as below",
        "one.share": "0.25",
        "one.colour": "blue",
        "maybe": "none",
        "maybe.share": "0.5",
        "maybe.colour": "red",
        "wait": "1m30s",
        "flag": "true",
        "text": "none",
        "factor": "100000",
        "labels": "none",
        "named": "none",
        "named.NAME.share": "0.5",
        "named.NAME.colour": "red",
    }


@pytest.mark.parametrize("plugin", [one for one in installed() if not one.problem], ids=lambda one: one.name)
def test_every_installed_plugin_can_be_shown(plugin: Description) -> None:
    cls = build.usable(load(plugin.kind, plugin.name), plugin.kind)
    assert {key.path for key in keys(cls)} >= {parameter.name for parameter in plugin.parameters}
