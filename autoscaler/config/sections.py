"""The sections of the file as dataclasses, from which both the reader and the JSON Schema are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from autoscaler.config.build import Plugin
from autoscaler.config.model import DaemonSpec
from autoscaler.core.durations import format_duration
from autoscaler.core.model import Behaviour, CapacitySpec, ClusterSpec, Policy, SettleSpec
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import Kind
from autoscaler.ports import DiscoveryPlugin, EnginePlugin, SourcePlugin, TargetPlugin

INTERVAL = timedelta(seconds=15)
LONGEST_TIMEOUT = timedelta(seconds=10)
SHORTEST_DISCOVERY = timedelta(seconds=1)
DIRECTORY = "autoscaler-state"
SCALED = ("clusters", "fleets")
"""A file has at least one of these sections."""


# The defaults of the core, so that each default is defined in one place.
_CORE: dict[str, Any] = {item.name: item.default for item in fields(ClusterSpec)}


@dataclass(frozen=True)
class MetricSection:
    """One metric: where it comes from; every further key belongs to the source's query.

    Attributes:
        source: the source, by its name under `sources`.
    """

    source: str


@dataclass(frozen=True, kw_only=True)
class ClusterSection:
    """One cluster: its target, the policies and metrics that decide about its size, and its limits.

    Attributes:
        target: what is scaled.
        policies: the policies by name; the largest size that a policy recommends is proposed.
        combine: an expression over the names of the policies that gives the proposed size instead, such as
            `lag if urgent else max(capacity, cpu)`.
        max: the largest size, in replicas.
        min: the smallest size, in replicas.
        interval: time between two observations of the cluster; at least 100ms.
        timeout: time in which the metrics, the engine and the target must answer; shorter than the interval.
            By default two thirds of the interval, at most 10s.
        engine: the engine that runs the job, if it is watched.
        slots_per_replica: slots that one replica offers the job.
        partitions: source partitions, if the engine does not report them; capacity grows in steps that depend on them.
        metrics: the metrics by name; while a metric cannot be read, the cluster is not scaled down.
        up: the guards of scaling up.
        down: the guards of scaling down.
        settle: how a rescale is tracked until it has settled.
        capacity: how capacity, the records/s a size can process when busy, is learned.
        max_age: an older reading counts as missing; at least the timeout.
        max_ahead: a reading further in the future counts as missing.
        max_values: a reading with more numbers or parts counts as missing, unless its mean is known.
        lookback: how much of the past the policies see; raised to what the policies need.
        time_zone: the time zone of the people who cause the load, such as Europe/Berlin. It applies to policies whose
            parameter `timezone` is left out, to the typical week of `autoscaler profile --config`, and to the times in
            pictures of `simulate --plot`. If left out, it is `daemon.time_zone`.
    """

    target: Annotated[TargetPlugin, Plugin(Kind.TARGET)]
    policies: Mapping[str, Annotated[Policy, Plugin(Kind.POLICY)]]
    max: int
    min: int = 1
    combine: str | None = None
    interval: timedelta = INTERVAL
    timeout: timedelta | None = None
    engine: Annotated[EnginePlugin, Plugin(Kind.ENGINE)] | None = None
    slots_per_replica: int = _CORE["slots_per_replica"]
    partitions: int | None = None
    metrics: Mapping[str, MetricSection] = field(default_factory=dict)
    up: Behaviour = _CORE["up"]
    down: Behaviour = _CORE["down"]
    settle: SettleSpec = _CORE["settle"]
    capacity: CapacitySpec = _CORE["capacity"]
    max_age: timedelta = _CORE["max_age"]
    max_ahead: timedelta = _CORE["max_ahead"]
    max_values: int = 1000
    lookback: timedelta = _CORE["lookback"]
    time_zone: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class TemplateSection(ClusterSection):
    """The cluster of each member of a fleet; every value may have expressions such as `${labels.app}`.

    Attributes:
        sources: metric sources of each member, by name; its metrics may use these and those of the file.
    """

    sources: Mapping[str, Annotated[SourcePlugin, Plugin(Kind.SOURCE)]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FleetSection:
    """A fleet: one template for all the clusters that a discovery finds.

    Attributes:
        discover: finds the members.
        name: the name of each member's cluster, such as `${namespace}/${name}`: up to 10 parts separated by `/`,
            of letters, digits, `.`, `_` and `-`; at most 200 characters.
        template: the cluster of each member; left out if the discovery's members bring their own.
        interval: time between two runs of the discovery; at least 1s.
        confirm: how long a loss of half of the members or more, or of the last one, must last before they are
            removed.
    """

    discover: Annotated[DiscoveryPlugin, Plugin(Kind.DISCOVERY)]
    name: str
    template: TemplateSection = None  # type: ignore[assignment]  # left out, and never null
    interval: timedelta = timedelta(seconds=10)
    confirm: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if self.interval < SHORTEST_DISCOVERY:
            raise ParameterError("interval", f"must be at least {format_duration(SHORTEST_DISCOVERY)}")


@dataclass(frozen=True)
class FileSections:
    """The configuration of the autoscaler.

    Attributes:
        clusters: the clusters by name; a name has letters, digits, `.`, `_` and `-`. At least one cluster or fleet
            is needed.
        sources: the metric sources by name; clusters refer to them by this name.
        daemon: settings of the daemon itself.
        include: files, folders or patterns such as `conf.d/*.yaml`, relative to this file: their `clusters`,
            `fleets` and `sources` are read as if they were in this file.
        fleets: the fleets by name: clusters that a discovery finds, with one template for all.
    """

    clusters: Mapping[str, ClusterSection] = field(default_factory=dict)
    sources: Mapping[str, Annotated[SourcePlugin, Plugin(Kind.SOURCE)]] = field(default_factory=dict)
    daemon: DaemonSpec = DaemonSpec(directory=Path(DIRECTORY))  # noqa: RUF009 - it is frozen
    include: str | tuple[str, ...] = ()
    fleets: Mapping[str, FleetSection] = field(default_factory=dict)
