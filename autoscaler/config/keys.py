"""The keys of a plug-in as they are written in a file, including those inside lists and mappings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import yaml

from autoscaler import plugins
from autoscaler.config import build
from autoscaler.config.schema import plain


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        path: such as `metrics[].target`.
        takes: its type, in words.
        default: the default as it would be written, `none`, or `required`.
        meaning: its description in the docstring, and its former names.
    """

    path: str
    takes: str
    default: str
    meaning: str


def keys(cls: type[Any], default: object = None, above: str = "") -> Iterator[Key]:
    """The keys of a dataclass in their order; defaults are those of `default`, or else of the class."""
    hints, docs = build.type_hints(cls), plugins.attribute_docs(cls)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        value = getattr(default, field.name) if isinstance(default, cls) else plugins.default_of(field)
        hint, path = hints[field.name], above + field.name
        former = ", ".join(f"`{alias}`" for alias in plugins.field_aliases(field))
        meaning = f"{docs.get(field.name, '')} Formerly {former}.".lstrip() if former else docs.get(field.name, "")
        yield Key(path, build.describe(hint), _written(value), meaning)
        inner, many = _inside(hint)
        if inner is not None:
            yield from keys(inner, value, f"{path}{many}.")


def _inside(hint: Any) -> tuple[type[Any] | None, str]:  # noqa: ANN401 - a type of any form
    """The dataclass that a type holds, if any, and `[]` or `.NAME` if it holds a list or a mapping of them."""
    hint = build.bare(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint, ""
    origin = get_origin(hint)
    many = "[]" if origin in build.LISTS else ".NAME" if origin in build.MAPPINGS else ""
    for member in get_args(hint):
        inner, more = _inside(member)
        if inner is not None:
            return inner, many + more
    return None, ""


def _written(value: object) -> str:
    if value is dataclasses.MISSING:
        return "required"
    value = plain(value)
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, dict):
        return "as below"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return str(value).lower() if isinstance(value, bool) else str(value)
