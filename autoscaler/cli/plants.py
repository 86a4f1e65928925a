"""Simulated clusters by name, or from a file with their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import print_error
from autoscaler.config import document
from autoscaler.config.build import Builder
from autoscaler.config.document import Invalid, Node, Problems, Scalar, join
from autoscaler.core.durations import parse_duration
from autoscaler.plugins import guess
from autoscaler.schedulers.flink import FlinkSettings, default_max_delay
from autoscaler.schedulers.slots import Bounds
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.simulation.plant import METRICS, PLANTS, SCHEDULER_PLANTS, PlantSpec

LIKE = "like"
"""The key that names the plant whose parameters are the defaults of a file."""

RATE, OLD_RATE = "rate_per_worker", "one"
"""The key of the records/s that one worker processes, and its old name."""

KNOWN: Mapping[str, PlantSpec] = {**PLANTS, **SCHEDULER_PLANTS}
"""The plants by name."""

Scheduler = FlinkSettings | SparkSettings


@dataclass(frozen=True, slots=True)
class Described:
    """A plant, and what a file adds to it.

    Attributes:
        plant: how it behaves.
        rate_per_worker: records/s that one worker processes; None: not set.
        metrics: metric of a configuration -> which of the plant's metrics it is.
    """

    plant: PlantSpec
    rate_per_worker: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)


def plant(text: str) -> Described:
    """A plant by its name, or by the path of a file.

    The file is a YAML mapping of the fields of `PlantSpec` and `Described`. A time is a number of seconds, or written
    like 90s or 5m. `scheduler` is a mapping: `type: flink` with a `version` and the `FlinkSettings` that differ from
    its defaults, or `type: spark` with `SparkSettings`.

    Raises:
        ConfigurationError: there is no such plant or file, or the file is wrong; all problems as `file:line: key:
            message`.
    """
    if text in KNOWN:
        return Described(KNOWN[text])
    path = Path(text)
    if not path.exists():
        names = ", ".join(KNOWN)
        raise wrong(f"--plant {text}: is not a plant and not a file, expected one of {names}{guess(text, KNOWN)}")
    problems = Problems(text)
    try:
        return _read(path, problems)
    except Invalid:
        raise problems.error() from None


def _read(path: Path, problems: Problems) -> Described:
    build = Builder(problems, path.parent, {})
    mapping = build.mapping(document.read(path, problems), "")
    base = KNOWN["k8s"]
    if LIKE in mapping.entries:
        entry = mapping.entries[LIKE]
        like = build.value(str, entry.node, LIKE)
        if like not in KNOWN:
            message = f"{like!r} is not a plant, expected one of {', '.join(KNOWN)}{guess(like, KNOWN)}"
            raise problems.fail(entry.line, LIKE, message)
        base = KNOWN[like]
    checkpoint = _checkpoint(mapping, base)
    own: dict[str, Callable[[Node, str], Any]] = {
        RATE: partial(_rate, build),
        OLD_RATE: partial(_rate, build),
        "metrics": partial(_metrics, build),
    }
    read = build.fields(
        PlantSpec,
        mapping,
        "",
        taken=(LIKE, *own),
        base=base,
        readers=_numbers(build, PlantSpec) | {"scheduler": partial(_scheduler, build, checkpoint)},
    )
    if OLD_RATE in mapping.entries:
        _warn_once(f"warning: {path}:{mapping.entries[OLD_RATE].line}: {OLD_RATE} is now called {RATE}")
    besides: dict[str, Any] = {}
    for key, reader in own.items():
        if key in mapping.entries:
            try:
                besides[RATE if key == OLD_RATE else key] = reader(mapping.entries[key].node, key)
            except Invalid:
                read.complete = False
    if RATE in mapping.entries and OLD_RATE in mapping.entries:
        raise problems.fail(
            mapping.entries[OLD_RATE].line, OLD_RATE, f"is the old name of {RATE}, which is set as well"
        )
    if not read.complete or problems:
        raise Invalid
    rules = base.scheduler
    if isinstance(rules, FlinkSettings) and checkpoint != base.checkpoint:
        # The default maximum delay of a rescale is a multiple of the checkpoint interval.
        base = replace(base, scheduler=replace(rules, max_delay=default_max_delay(checkpoint)))
    return Described(build.construct(PlantSpec, mapping, "", read.values, base), **besides)


@cache
def _warn_once(line: str) -> None:
    """Print a warning only once: some commands read the file several times."""
    print_error(line)


def _numbers(build: Builder, cls: type[Any]) -> dict[str, Callable[[Node, str], Any]]:
    """The readers of the float fields of a dataclass."""
    numbers = [field.name for field in fields(cls) if isinstance(field.default, float)]
    return dict.fromkeys(numbers, partial(_number, build))


def _number(build: Builder, node: Node, path: str) -> float:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        try:
            return parse_duration(node.value).total_seconds()
        except ValueError as error:
            raise build.fail(node, path, f"expected a number, or a time: {error}") from error
    return float(build.value(float, node, path))


def _checkpoint(mapping: document.Mapping, base: PlantSpec) -> float:
    """Seconds between checkpoints. An error in this key is reported later, when all keys are read."""
    if "checkpoint" not in mapping.entries:
        return base.checkpoint
    try:
        return _number(Builder(Problems(""), Path(), {}), mapping.entries["checkpoint"].node, "")
    except Invalid:
        return base.checkpoint


def _rate(build: Builder, node: Node, path: str) -> float:
    rate = float(build.value(float, node, path))
    if rate <= 0:
        raise build.fail(node, path, f"is {rate:g}, expected above 0 records/s")
    return rate


def _metrics(build: Builder, node: Node, path: str) -> dict[str, str]:
    def shown(_: str, inner: Node, where: str) -> str:
        name: str = build.value(str, inner, where)
        if name not in METRICS:
            raise build.fail(
                inner,
                where,
                f"{name!r} is not a metric of the plant, expected one of {', '.join(METRICS)}{guess(name, METRICS)}",
            )
        return name

    return build.entries(node, path, shown)


def _scheduler(build: Builder, checkpoint: float, node: Node, path: str) -> Scheduler | None:
    if isinstance(node, Scalar) and node.value is None:
        return None
    mapping = build.mapping(node, path)
    kind = _text(mapping, "type")
    if kind == "spark":
        return _settings(build, mapping, path, SparkSettings(), ("type",))
    if kind != "flink":
        where = mapping.entries["type"].line if "type" in mapping.entries else mapping.line
        raise build.problems.fail(where, join(path, "type"), f"expected flink or spark, not {kind or 'nothing'}")
    base = _flink(build, mapping, path, checkpoint)
    return _settings(build, mapping, path, base, ("type", "version", "max_parallelism"))


def _text(mapping: document.Mapping, key: str) -> str:
    """A scalar as it is written: 2.3 is a version here, not a number."""
    node = mapping.entries[key].node if key in mapping.entries else None
    return node.text if isinstance(node, Scalar) else ""


def _flink(build: Builder, mapping: document.Mapping, path: str, checkpoint: float) -> FlinkSettings:
    where = mapping.entries["version"].line if "version" in mapping.entries else mapping.line
    try:
        settings = FlinkSettings.of(_text(mapping, "version"), checkpoint_interval=checkpoint)
    except ValueError as error:
        raise build.problems.fail(where, join(path, "version"), str(error)) from error
    if "max_parallelism" not in mapping.entries:
        return settings
    entry = mapping.entries["max_parallelism"]
    most: int = build.value(int, entry.node, join(path, "max_parallelism"))
    if most < 1:
        raise build.problems.fail(entry.line, join(path, "max_parallelism"), f"is {most}, expected 1 or more")
    return replace(settings, groups=((Bounds(1, most),),))


def _settings(
    build: Builder, mapping: document.Mapping, path: str, base: Scheduler, taken: tuple[str, ...]
) -> Scheduler:
    """A scheduler's settings: those of the file, else those of `base`."""
    read = build.fields(type(base), mapping, path, taken=taken, base=base, readers=_numbers(build, type(base)))
    if "heartbeat" in mapping.entries:
        entry = mapping.entries["heartbeat"]
        message = "set `heartbeat` and `crash_noticed` of the plant instead: how long killed workers go unnoticed"
        raise build.problems.fail(entry.line, join(path, "heartbeat"), message)
    if not read.complete:
        raise Invalid
    return build.construct(type(base), mapping, path, read.values, base)
