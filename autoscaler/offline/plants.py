"""Simulated clusters by name, or from a file with their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

from autoscaler.config import document
from autoscaler.config.build import Builder
from autoscaler.config.document import Invalid, Node, Problems, Scalar
from autoscaler.durations import parse_duration
from autoscaler.offline.configuration import wrong
from autoscaler.plugins import guess
from autoscaler.replay.plant import PLANTS, PlantSpec

LIKE = "like"
"""The key that names the plant whose parameters hold where a file says nothing."""


def plant(text: str) -> PlantSpec:
    """A plant by its name, or by the path of a file.

    The file is a YAML mapping of the fields of `PlantSpec`. A time is a number of seconds, or written like 90s or 5m.

    Raises:
        ConfigurationError: there is neither, or the file is not usable; all problems as `file:line: key: message`.
    """
    if text in PLANTS:
        return PLANTS[text]
    path = Path(text)
    if not path.exists():
        names = ", ".join(PLANTS)
        raise wrong(f"--plant {text}: is no plant and no file, expected one of {names}{guess(text, PLANTS)}")
    problems = Problems(text)
    try:
        return _read(path, problems)
    except Invalid:
        raise problems.error() from None


def _read(path: Path, problems: Problems) -> PlantSpec:
    build = Builder(problems, path.parent, {})
    mapping = build.mapping(document.read(path, problems), "")
    like = "k8s"
    if LIKE in mapping.entries:
        entry = mapping.entries[LIKE]
        like = build.value(str, entry.node, LIKE)
        if like not in PLANTS:
            message = f"{like!r} is no plant, expected one of {', '.join(PLANTS)}{guess(like, PLANTS)}"
            raise problems.fail(entry.line, LIKE, message)
    base = PLANTS[like]
    numbers = [field.name for field in fields(PlantSpec) if isinstance(field.default, float)]
    reader: Callable[[Node, str], float] = partial(_number, build)
    read = build.fields(PlantSpec, mapping, "", taken=(LIKE,), base=base, readers=dict.fromkeys(numbers, reader))
    if not read.complete:
        raise Invalid
    return build.construct(PlantSpec, mapping, "", read.values, base)


def _number(build: Builder, node: Node, path: str) -> float:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        try:
            return parse_duration(node.value).total_seconds()
        except ValueError as error:
            raise build.fail(node, path, f"expected a number, or a time: {error}") from error
    return float(build.value(float, node, path))
