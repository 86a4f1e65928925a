"""Reads one cluster of a file, or of a fleet's template, and checks it across its fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeGuard

from autoscaler import plugins
from autoscaler.config import combine, document
from autoscaler.config.build import Builder
from autoscaler.config.document import Invalid, Node, Problems, join
from autoscaler.config.model import Cluster, Metric
from autoscaler.config.sections import LONGEST_TIMEOUT, ClusterSection
from autoscaler.core.durations import format_duration
from autoscaler.core.foreign import format_exception
from autoscaler.core.model import STABILIZED, ClusterSpec, Limits, NamedPolicy
from autoscaler.core.parameters import ParameterError
from autoscaler.core.workload_profile import local_seconds
from autoscaler.plugins import Kind
from autoscaler.ports import ChecksQueries, TargetPlugin

# Names of clusters, sources, metrics and policies: they become file names, URL parts and metric labels.
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}"

_NAME = re.compile(NAME)
_RESERVED = ("target", "engine")  # their names in `Observation.missing`
# Settings that the core takes unchanged.
_PASSED_ON = (
    *("up", "down", "settle", "capacity", "slots_per_replica", "partitions"),
    *("interval", "max_age", "max_ahead"),
)
# Settings that name a metric.
_METRIC_NAMES = (
    *(("settle", "lag"), ("settle", "throughput")),
    *(("capacity", "throughput"), ("capacity", "saturation")),
)
_SHORTEST_INTERVAL = timedelta(milliseconds=100)
_MOST_REPLICAS = 100_000
_ZERO = timedelta(0)
# A metric with such a name may be a share from 0 to 1, or a percentage; `busy_threads` and `shared_queue` do not match.
_SHARE_NAME = re.compile(r"(?:^|[_.-])(?:(?:cpu|utili[sz]ation|saturation)(?:[_.-]|$)|(?:busy|share)$)", re.IGNORECASE)
SAME_TARGET = "has the same target: each would undo the changes of the other; give each its own"
_MOST_CORES = 10
_PERCENT = 100
_LEAST_PERCENTAGE = 2  # a level from 1 to this is rather a utilization above 100 % than a percentage


def check_name(name: str, node: Node, path: str, build: Builder) -> None:
    """Refuse a name of a cluster, source, metric or policy. Raises Invalid."""
    if not _NAME.fullmatch(name):
        rule = "a name is 1 to 63 letters, digits, `_`, `.`, `-`, and does not begin with `.` or `-`"
        raise build.fail(node, path, rule)


def source_classes(build: Builder, root: document.Mapping, path: str) -> dict[str, type[Any] | None]:
    """The classes of the sources in the section `sources` of a mapping; None when one cannot be loaded."""
    if "sources" not in root.entries or not isinstance(root.entries["sources"].node, document.Mapping):
        return {}
    classes: dict[str, type[Any] | None] = {}
    for name, entry in root.entries["sources"].node.entries.items():
        try:
            classes[name] = build.plugin_class(Kind.SOURCE, entry.node, join(join(path, "sources"), name))
        except Invalid:  # recorded here, and again with the same text when the source itself is read
            classes[name] = None
    return classes


def read_source(build: Builder, name: str, node: Node, path: str) -> Any:  # noqa: ANN401 - whatever the plug-in's class is
    """Read one source of a section `sources`. Raises Invalid."""
    check_name(name, node, path, build)
    return build.plugin(Kind.SOURCE, node, path)


class Owners:
    """Records which cluster owns which target."""

    def __init__(self) -> None:
        self._taken: dict[Hashable, list[tuple[object, str]]] = {}

    def take(self, target: TargetPlugin, owner: str) -> str | None:
        """Record the owner of a target. Returns the present owner of an equal target, and then changes nothing.

        Errors of the plug-in are passed on.
        """
        if getattr(target, "shareable", False):
            return None
        subject = (type(target), getattr(target, "subject", target))
        alike = self._taken.setdefault(plugins.hash_key(subject), [])
        first = next((other for known, other in alike if known == subject), None)
        if first is None:
            alike.append((subject, owner))
        return first


class ClusterReader:
    """Reads clusters from nodes.

    Args:
        build: reads values, and records problems and warnings.
        sources: source name -> its class, to check metrics against; None when it could not be loaded.
        owners: the targets that have an owner already.
        time_zone: the time zone of clusters that set none.
    """

    def __init__(self, build: Builder, sources: Mapping[str, type[Any] | None], owners: Owners, time_zone: str) -> None:
        self._problems = build.problems
        self._build = build
        self._sources = sources
        self._owners = owners
        self._usual_zone = time_zone
        # Path of a cluster -> line and path of its time-out, or of the cluster if that is left out.
        self._timeouts: dict[str, tuple[int, str]] = {}
        # Path of a cluster -> line and path of its expression.
        self._expressions: dict[str, tuple[int, str]] = {}
        # Path of a metric -> its node.
        self._queries: dict[str, document.Mapping] = {}
        # Path of a metric -> whether it is a share; None: its source does not say.
        self._shares: dict[str, bool | None] = {}
        # Path of a policy -> its node, and each metric that it compares with a level.
        self._levels: dict[str, tuple[Node, list[tuple[str, float]]]] = {}

    def read(self, name: str, node: Node, path: str, *, taken: tuple[str, ...] = ()) -> Cluster:
        """Read a cluster, except for the keys in `taken`, which the caller reads.

        Raises:
            Invalid: the cluster is not usable; its problems are recorded.
        """
        build = self._build
        mapping = build.mapping(node, path, ClusterSection)
        known = _names("metrics", mapping)
        readers = {
            "metrics": lambda node, path: build.entries(node, path, self._metric),
            "time_zone": self._time_zone,
            "policies": lambda node, path: build.entries(
                node, path, lambda name, node, path: self._policy(name, node, path, known)
            ),
        }
        read = build.fields(ClusterSection, mapping, path, taken=taken, readers=readers)
        if "target" in read.values:
            self._check_owner(read.values["target"], *mapping.place("target", path), name)
        self._timeouts[path] = mapping.place("timeout", path) if "timeout" in mapping.entries else (mapping.line, path)
        if "combine" in mapping.entries:
            self._expressions[path] = mapping.place("combine", path)
        zone = read.values.get("time_zone", self._usual_zone)
        if "policies" in read.values:
            written = build.mapping(mapping.entries["policies"].node, join(path, "policies")).entries
            read.values["policies"] = {
                each: named if _names_zone(written[each].node) else _in_time_zone(named, zone)
                for each, named in read.values["policies"].items()
            }
        settings = _Settings(mapping, path, read.values, self._problems)
        valid = settings.check(known)
        if not (read.complete and valid):
            raise Invalid
        spec = build.construct(ClusterSpec, mapping, path, settings.spec(name))
        down = mapping.entries.get("down")
        if down is not None and spec.stabilized and "window" not in build.mapping(down.node, path).entries:
            # A missing key keeps its default, also when another key of `down` is set.
            spec = dataclasses.replace(spec, down=dataclasses.replace(spec.down, window=STABILIZED.window))
        self._check_levels(spec, mapping, path)
        self._check_objectives(spec, path)
        return Cluster(
            spec=spec,
            target=settings["target"],
            engine=settings["engine"],
            metrics=read.values.get("metrics", {}),
            interval=settings["interval"],
            timeout=settings.timeout,
            max_values=settings["max_values"],
            time_zone=zone,
        )

    def _time_zone(self, node: Node, path: str) -> str:
        zone: str = self._build.value(str, node, path)
        try:
            local_seconds(0.0, zone)
        except ValueError as error:
            raise self._build.fail(node, path, str(error)) from error
        return zone

    def _check_objectives(self, spec: ClusterSpec, path: str) -> None:
        """Warn of an objective that is shorter than the interval: it can be missed between two ticks."""
        for named in spec.policies:
            where = join(join(path, "policies"), named.name)
            node, _ = self._levels[where]
            line = node.line
            with contained(named.policy, self._problems, line, where):
                objective = getattr(named.policy, "objective", None)
            if isinstance(objective, timedelta) and objective < spec.interval:
                if isinstance(node, document.Mapping) and "objective" in node.entries:
                    line, where = node.place("objective", where)
                self._build.warnings.add(
                    line,
                    where,
                    f"an objective of {format_duration(objective)} is shorter than the interval of the cluster "
                    f"({format_duration(spec.interval)}): records may be too old before the next tick; write an "
                    "objective that is a few times as long as a restart of the job, or a shorter interval",
                )

    def _check_levels(self, spec: ClusterSpec, mapping: document.Mapping, path: str) -> None:
        """Find policies that compare a share from 0 to 1 with a level that is meant as a percentage."""
        shares = {name: self._shares[join(join(path, "metrics"), name)] for name in spec.metrics}
        saturation = spec.capacity.saturation
        if "saturation" in _names("capacity", mapping):
            shares[saturation] = True  # the key is defined as a share
        for named in spec.policies:
            where = join(join(path, "policies"), named.name)
            node, levels = self._levels[where]
            for metric, level in levels:
                share = shares.get(metric, False)
                # A name tells little: a CPU may be counted in cores, or already be a percentage.
                likely = metric == saturation or _SHARE_NAME.search(metric)
                least = _MOST_CORES if "cpu" in metric.lower() else 1
                doubtful = share is None and likely and least < level <= _PERCENT
                if not doubtful and not (share and level > 1):
                    continue
                place = _parameter_with(level, node, where) or (node.line, where)
                write = f"{level / _PERCENT:g}" if _LEAST_PERCENTAGE <= level <= _PERCENT else "at most 1"
                if share:
                    message = f"{level:g} for the metric {metric}, which is a share from 0 to 1; write {write}"
                    raise self._problems.fail(*place, message)
                self._build.warnings.add(
                    *place, f"{level:g} for the metric {metric}: if that is a share from 0 to 1, write {write}"
                )

    def _check_owner(self, target: Any, line: int, path: str, cluster: str) -> None:  # noqa: ANN401 - any plug-in
        """Refuse a target that another cluster owns."""
        with contained(target, self._problems, line, path):
            owner = self._owners.take(target, cluster)
        if owner is not None:
            self._problems.add(line, path, f"cluster {owner!r} {SAME_TARGET}")

    def check_queries(self, cluster: Cluster, sources: Mapping[str, Any], path: str) -> None:
        """Have sources refuse the metrics that do not fit their own parameters."""
        for name, metric in cluster.metrics.items():
            source = sources.get(metric.source)  # None: the source itself has problems
            if not isinstance(source, ChecksQueries):
                continue
            where = join(join(path, "metrics"), name)
            mapping = self._queries[where]
            try:
                with contained(source, self._problems, mapping.line, where, ParameterError):
                    source.check_query(metric.query)
            except ParameterError as error:
                place = mapping.place(error.name, where) if error.name in mapping.entries else (mapping.line, where)
                self._problems.add(*place, error.message)

    def warn(self, cluster: Cluster, sources: Mapping[str, Any], path: str) -> None:
        """Record probable mistakes that can be found only after everything is read."""
        found = self._build.warnings
        line, where = self._timeouts[path]
        used = {metric.source: sources.get(metric.source) for metric in cluster.metrics.values()}
        parts = {"target": cluster.target, "engine": cluster.engine}
        for part, plugin in {**parts, **{f"source {key}": source for key, source in used.items()}}.items():
            with contained(plugin, self._problems, line, where):
                theirs = getattr(plugin, "timeout", None)
            if isinstance(theirs, timedelta) and theirs > cluster.timeout:
                found.add(
                    line,
                    where,
                    f"the timeout of the {part} ({format_duration(theirs)}) is above that of the cluster "
                    f"({format_duration(cluster.timeout)}): the cluster stops waiting before the {part} can "
                    "report what is wrong",
                )
        if isinstance(cluster.spec.combine, combine.Expression):
            unheard = combine.unheard(cluster.spec.combine, cluster.spec.policies)
            if unheard:
                found.add(*self._expressions[path], unheard)

    def _metric(self, name: str, node: Node, path: str) -> Metric:
        check_name(name, node, path, self._build)
        build = self._build
        if name in _RESERVED:
            raise build.fail(node, path, f"a metric may not be called {name}: the name is reserved for the {name}")
        entry = build.mapping(node, path).entries.get("source")
        if entry is None:
            raise build.fail(node, join(path, "source"), f"missing; sources: {self._source_names()}")
        source = build.value(str, entry.node, join(path, "source"))
        if source not in self._sources:
            hint = plugins.guess(source, self._sources)
            message = f"unknown source {source!r}; sources: {self._source_names()}{hint}"
            raise build.fail(entry.node, join(path, "source"), message)
        cls = self._sources[source]
        if cls is None:
            raise Invalid  # the source itself has a problem, so its queries cannot be checked
        mapping = build.mapping(node, path, cls.Query)
        read = build.fields(cls.Query, mapping, path, taken=("source",))
        if not read.complete:
            raise Invalid
        query = build.construct(cls.Query, mapping, path, read.values)
        self._queries[path] = mapping
        with contained(query, self._problems, mapping.line, path):
            share = getattr(query, "share", None)
            doubts = list(_pairs(query, "doubts", str))
        self._shares[path] = share if isinstance(share, bool) else None
        for key, message in doubts:
            place = mapping.place(key, path) if key in mapping.entries else (mapping.line, path)
            build.warnings.add(*place, message)
        return Metric(source, query)

    def _source_names(self) -> str:
        return ", ".join(self._sources) or "none are defined"

    def _policy(self, name: str, node: Node, path: str, known: Sequence[str]) -> NamedPolicy:
        check_name(name, node, path, self._build)
        policy = self._build.plugin(Kind.POLICY, node, path)
        with contained(policy, self._problems, node.line, path):
            reads, _, named = _reads(policy), _lookback(policy), NamedPolicy(name, policy)
            self._levels[path] = (
                node,
                [(metric, float(level)) for metric, level in _pairs(policy, "levels", int, float)],
            )
        unknown = [metric for metric in reads if metric not in known]
        for metric in unknown:
            line, where = _parameter_with(metric, node, path) or (node.line, path)
            message = (
                f"the policy reads the metric {metric!r}, which the cluster does not have{_suggest(metric, known)}"
            )
            self._problems.add(line, where, message)
        if unknown:
            raise Invalid
        return named


class _Settings:
    """A cluster's settings as far as they could be read, and the checks across them."""

    def __init__(self, mapping: document.Mapping, path: str, values: Mapping[str, Any], problems: Problems) -> None:
        self._mapping = mapping
        self._path = path
        self._values = values
        self._problems = problems
        self._valid = True
        self._defaults = {item.name: item.default for item in dataclasses.fields(ClusterSection)}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - settings have many types
        return self._values.get(name, self._defaults[name])

    @property
    def timeout(self) -> timedelta:
        """The timeout that is set, or else the timeout that follows from the interval."""
        set_to: timedelta | None = self["timeout"]
        interval: timedelta = self["interval"]
        return min(LONGEST_TIMEOUT, interval * 2 / 3) if set_to is None else set_to

    def spec(self, name: str) -> dict[str, Any]:
        """The arguments of the core's `ClusterSpec`."""
        policies: Mapping[str, NamedPolicy] = self["policies"]
        return {
            "name": name,
            "limits": Limits(self["min"], self["max"]),
            "policies": tuple(policies.values()),
            "metrics": tuple(self._values.get("metrics", ())),
            "engine": self["engine"] is not None,
            "combine": None if self["combine"] is None else combine.read(self["combine"], policies),
            "lookback": max([self["lookback"], *(_lookback(named.policy) for named in policies.values())]),
            **{key: self[key] for key in _PASSED_ON},
        }

    def check(self, metrics: Sequence[str]) -> bool:
        """Record inconsistent settings. Returns whether there are none."""
        self._check_sizes()
        self._check_times()
        self._check_metrics(metrics)
        self._check_combine()
        if self._usable("policies") and "policies" in self._mapping.entries and not self["policies"]:
            self._reject("at least one policy is needed", "policies")
        return self._valid

    def _check_sizes(self) -> None:
        for name in ("slots_per_replica", "partitions", "max_values"):
            if self._usable(name) and self[name] is not None and self[name] < 1:
                self._reject(f"must be 1 or more, not {self[name]}", name)
        if self._usable("max") and "max" in self._values and self["max"] > _MOST_REPLICAS:
            self._reject(f"must be at most {_MOST_REPLICAS:,}, not {self['max']}", "max")
        if self._usable("min") and "max" in self._values:
            try:
                Limits(self["min"], self["max"])
            except ParameterError as error:
                self._reject(error.message, error.name, "max")

    def _check_times(self) -> None:
        if self._usable("interval") and self["interval"] < _SHORTEST_INTERVAL:
            self._reject(f"must be at least {format_duration(_SHORTEST_INTERVAL)}", "interval")
            return
        if self._usable("timeout") and self["timeout"] is not None and self["timeout"] <= _ZERO:
            self._reject("must be above 0s", "timeout")
            return
        if not (self._usable("interval") and self._usable("timeout")):
            return
        timeout, interval = format_duration(self.timeout), format_duration(self["interval"])
        if self.timeout >= self["interval"]:
            self._reject(f"must be shorter than the interval ({interval}), not {timeout}", "timeout", "interval")
        elif self._usable("max_age") and self["max_age"] < self.timeout:
            age = format_duration(self["max_age"])
            message = f"must be at least the timeout ({timeout}), not {age}: slow answers would be stale"
            self._reject(message, "max_age", "timeout")
        if self._usable("max_age") and self._usable("metrics"):
            self._check_ages()

    def _check_ages(self) -> None:
        """A source may state how old its values get in normal operation: see `SourcePlugin`."""
        for name, metric in self._values.get("metrics", {}).items():
            with contained(metric.query, self._problems, *self._mapping.place("metrics", self._path)):
                ages = getattr(metric.query, "ages", None)
            if _is_span(ages) and self["max_age"] <= ages[0]:
                self._reject(
                    f"{format_duration(self['max_age'])} is too short for the metric {name}: just before the "
                    f"next value, the newest is {format_duration(ages[0])} to {format_duration(ages[1])} old, and "
                    f"would count as missing; set max_age: {format_duration(ages[1])}",
                    "max_age",
                    "metrics",
                    inside=name,
                )
                return

    def _check_metrics(self, metrics: Sequence[str]) -> None:
        # Only a default may name a metric that does not exist; that part is then unknown.
        for section, key in _METRIC_NAMES:
            node = self._mapping.entries[section].node if section in self._mapping.entries else None
            inner = node.entries.get(key) if isinstance(node, document.Mapping) else None
            if inner is None or not isinstance(inner.node, document.Scalar):
                continue
            metric = getattr(self._values.get(section), key, inner.node.value)
            if isinstance(metric, str) and metric not in metrics:
                self._reject(f"the cluster has no metric {metric!r}{_suggest(metric, metrics)}", section, inside=key)

    def _check_combine(self) -> None:
        expression: str | None = self["combine"]
        names = _names("policies", self._mapping)
        if expression is None or not names:
            return
        read: Mapping[str, NamedPolicy] = self._values.get("policies", {})
        try:
            combine.read(expression, names, combine.silent(read.values()))
        except ValueError as error:
            self._reject(str(error), "combine")

    def _usable(self, name: str) -> bool:
        """Whether the setting is valid or has its default."""
        return name in self._values or name not in self._mapping.entries

    def _reject(self, message: str, *names: str, inside: str | None = None) -> None:
        """Record a problem at the first of these keys that is in the file."""
        self._valid = False
        for name in names:
            if name not in self._mapping.entries:
                continue
            line, path = self._mapping.place(name, self._path)
            node = self._mapping.entries[name].node
            if inside is not None and isinstance(node, document.Mapping) and inside in node.entries:
                line, path = node.place(inside, path)
            self._problems.add(line, path, message)
            return
        self._problems.add(self._mapping.line, self._path, message)


@contextmanager
def contained(plugin: object, problems: Problems, line: int, path: str, *allowed: type[Exception]) -> Iterator[None]:
    """Turn an exception of a plug-in into a problem that names the plug-in; `allowed` exceptions are passed on."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except allowed:
        raise
    except BaseException as error:
        raise problems.fail(line, path, f"{type(plugin).__name__} failed: {format_exception(error)}") from error


def _pairs(plugin: object, name: str, *kinds: type[Any]) -> Iterator[tuple[str, Any]]:
    """The pairs in an optional attribute of a plug-in; none if a parameter with that name is something else."""
    found = getattr(plugin, name, ())
    for item in found if isinstance(found, Iterable) else ():
        match item:
            case (str(key), value) if isinstance(value, kinds):
                yield key, value


def _is_span(ages: object) -> TypeGuard[tuple[timedelta, timedelta]]:
    """Whether these are the least and the greatest age of a value, and not some parameter with that name."""
    return isinstance(ages, tuple) and len(ages) == 2 and all(isinstance(age, timedelta) for age in ages)  # noqa: PLR2004


def _suggest(metric: str, known: Sequence[str]) -> str:
    return plugins.guess(metric, known) or f"; metrics: {', '.join(known) or 'none'}"


def _names(section: str, mapping: document.Mapping) -> list[str]:
    """The names in a section, also of invalid entries."""
    node = mapping.entries[section].node if section in mapping.entries else None
    return list(node.entries) if isinstance(node, document.Mapping) else []


def _reads(policy: object) -> tuple[str, ...]:
    """The metrics that a policy requires, by its optional attribute `metrics`."""
    names = getattr(policy, "metrics", ())
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"its attribute metrics is {names!r}, expected a tuple of names")
    return tuple(map(str, names))


def _names_zone(policy: Node) -> bool:
    return isinstance(policy, document.Mapping) and "timezone" in policy.entries


def _in_time_zone(named: NamedPolicy, zone: str) -> NamedPolicy:
    """A policy whose parameter `timezone` was left out, with the cluster's time zone."""
    policy: Any = named.policy
    if zone == "UTC" or not isinstance(getattr(policy, "timezone", None), str):
        return named
    return NamedPolicy(named.name, dataclasses.replace(policy, timezone=zone))


def _lookback(policy: object) -> timedelta:
    """How much past a policy needs, by its optional attribute `lookback`."""
    span = getattr(policy, "lookback", _ZERO)
    if not isinstance(span, timedelta):
        raise TypeError(f"its attribute lookback is {span!r}, expected a timedelta")
    return span


def _parameter_with(value: str | float, node: Node, path: str) -> tuple[int, str] | None:
    """Line and path of the policy's parameter with this value, such as a metric's name; None if not in the file."""
    if isinstance(node, document.Scalar):
        return (node.line, path) if node.value == value else None
    inner: Iterable[tuple[str | int, Node]]
    if isinstance(node, document.Mapping):
        inner = [(key, entry.node) for key, entry in node.entries.items() if key != "type"]
    else:
        inner = enumerate(node.items)
    found = (_parameter_with(value, child, join(path, key)) for key, child in inner)
    return next((place for place in found if place), None)
