"""Values that are made by the dozen for every decision."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def quick(cls: Class) -> Class:
    """Have a frozen dataclass with slots make its objects in half the time; nothing else differs.

    `dataclass` sets the fields of a frozen object through `object.__setattr__`, which looks each up by its name. Here
    its slot sets it. A tenth of a simulated day is saved so.
    """
    known: dict[str, Any] = {"MISSING": MISSING}
    taken, lines = [], []
    for each in fields(cls):
        name = each.name
        known[f"set_{name}"] = vars(cls)[name].__set__
        known[f"usual_{name}"] = each.default
        known[f"make_{name}"] = each.default_factory
        if each.default is not MISSING:
            taken.append(f"{name}=usual_{name}")
        else:
            taken.append(name if each.default_factory is MISSING else f"{name}=MISSING")
        made = name if each.default_factory is MISSING else f"make_{name}() if {name} is MISSING else {name}"
        lines.append(f"set_{name}(self, {made})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__(self, {', '.join(taken)}):\n    " + "\n    ".join(lines)
    exec(text, known)  # noqa: S102 - as `dataclass` itself does
    cls.__init__ = wraps(cls.__init__)(known["__init__"])  # type: ignore[misc]
    return cls
