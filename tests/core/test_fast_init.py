"""Objects created by `fast_init` equal those that the dataclass creates."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import partial

import pytest

from autoscaler.core.fast_init import creator, fast_init


@dataclass(frozen=True, slots=True)
class Plain:
    """A class as `dataclass` makes it."""

    name: str
    size: int = 1
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size must be 0 or more, not {self.size}")


@fast_init
@dataclass(frozen=True, slots=True)
class Fast:
    """The same class with `fast_init`."""

    name: str
    size: int = 1
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size must be 0 or more, not {self.size}")


@pytest.mark.parametrize(
    ("given", "named"), [(("a",), {}), (("a", 2), {}), (("a", 2, {"x": 1.0}), {}), (("a",), {"parts": {"x": 1.0}})]
)
def test_the_fields_are_those_of_a_dataclass(given: tuple[str], named: dict[str, Mapping[str, float]]) -> None:
    plain, made = Plain(*given, **named), Fast(*given, **named)  # type: ignore[arg-type]
    assert (made.name, made.size, made.parts) == (plain.name, plain.size, plain.parts)
    assert repr(made) == repr(plain).replace("Plain", "Fast")


def test_each_object_has_its_own_empty_mapping() -> None:
    assert Fast("a").parts is not Fast("a").parts


def test_it_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Fast("a").size = 2  # type: ignore[misc]


def test_invalid_values_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be 0 or more, not -1"):
        Fast("a", -1)


def test_a_missing_field_is_named_in_the_error() -> None:
    with pytest.raises(TypeError, match=r"Fast.__init__\(\) missing 1 required positional argument: 'name'"):
        Fast()  # type: ignore[call-arg]


def test_objects_are_replaced_copied_pickled_and_shown_as_before() -> None:
    made = Fast("a", 2, {"x": 1.0})
    assert replace(made, size=3) == Fast("a", 3, {"x": 1.0})
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own
    assert inspect.signature(Fast) == inspect.signature(Plain)


def test_the_fast_creator_makes_equal_objects() -> None:
    create = creator(Fast)
    assert create(name="a", size=2, parts={"x": 1.0}) == Fast("a", 2, {"x": 1.0})
    assert create("a") == Fast("a")
    assert create("a").parts is not create("a").parts
    with pytest.raises(FrozenInstanceError):
        create("a").size = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="size must be 0 or more, not -1"):
        create("a", -1)


def test_a_subclass_has_the_fields_of_its_base_too() -> None:
    class More(Fast):
        """A subclass with more slots than its base."""

        __slots__ = ("more",)

    made = More("a", parts={"x": 1.0})
    assert (type(made), made.name, made.size, made.parts) == (More, "a", 1, {"x": 1.0})
    assert More("a").parts == {}
    with pytest.raises(ValueError, match="size must be 0 or more, not -1"):
        More("a", -1)


def test_keyword_only_fields_stay_keyword_only() -> None:
    @fast_init
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        name: str
        size: int = 1

    assert Named(name="a") == Named(size=1, name="a")
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        Named("a")  # type: ignore[call-arg]


def test_a_former_name_of_a_field_is_accepted_as_a_keyword() -> None:
    @dataclass(frozen=True, slots=True)
    class Renamed:
        name: str
        size: int = 1

    made = partial(fast_init, former={"width": "size"})(Renamed)
    assert made("a", width=2) == made("a", 2)  # type: ignore[call-arg]
    assert replace(made("a", 2), width=3) == made("a", 3)  # type: ignore[call-arg]
    assert replace(made("a", 2), name="b") == made("b", 2)
    with pytest.raises(TypeError, match="positional argument"):
        made("a", 2, 3)  # type: ignore[call-arg]
