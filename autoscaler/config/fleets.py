"""Fleets: fills their templates for each member, and adds the members to the clusters of the file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from autoscaler import plugins
from autoscaler.config import document
from autoscaler.config.build import Builder
from autoscaler.config.cluster import (
    SAME_TARGET,
    ClusterReader,
    Owners,
    contained,
    read_source,
    source_classes,
)
from autoscaler.config.document import Invalid, Problems, join
from autoscaler.config.model import Cluster, Config, MemberCluster
from autoscaler.config.sections import ClusterSection
from autoscaler.config.template import PLACEHOLDER, Scope, fault_of, ids, varying
from autoscaler.core.foreign import format_exception
from autoscaler.ports import ConfigurationError, Member, SourcePlugin

MAX_NAME = 200
"""The maximum length of the name of a member's cluster, in characters."""

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_MAX_PARTS = 10  # in the name of a file each `/` takes three characters: it stays within 255 characters
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,{_MAX_PARTS - 1}}}")
_NAME_RULE = (
    f"a name is 1 to {MAX_NAME} letters, digits, `_`, `.`, `-`, in up to {_MAX_PARTS} parts separated by `/`; "
    "no part begins with `.` or `-`"
)


class Template:
    """The template of one fleet, as it is written in the file: see `model.FleetTemplate`.

    Args:
        path: the path of the fleet, such as `fleets.streaming`.
        section: its section of the file, which has a `name`, and a `template` unless each member brings its own.
        variables: the names of the values that each member has.
        classes: source name -> its class, of the sources of the file; None when it could not be loaded.
        sources: the sources of the file, as far as they could be read.
        build: reads the values of that file.
        time_zone: the time zone of clusters that set none.
    """

    def __init__(
        self,
        path: str,
        section: document.Mapping,
        variables: tuple[str, ...],
        classes: Mapping[str, type[Any] | None],
        sources: Mapping[str, SourcePlugin],
        build: Builder,
        time_zone: str,
    ) -> None:
        self._path = path
        self._section = section
        self._variables = variables
        self._classes = classes
        self._sources = sources
        self._build = build
        self._time_zone = time_zone
        self._node = section.entries["template"].node if "template" in section.entries else None
        self._file = build.problems.file
        self._varying = varying(section, variables)
        self._fixed: dict[Hashable, Any] = {}
        # Found in the template itself, so all members have them: warnings (file, line and message), and secrets.
        self._warned: set[tuple[str, int, str]] = set()
        self._secrets: set[str] = set()

    def check(self) -> None:
        """Record the problems and warnings that do not depend on the members."""
        scope, problems = self._scope(None), Problems(self._file)
        build = self._build.within(scope, problems)
        with suppress(Invalid):  # recorded, or not known without a member
            if self._node is None:
                self._name(build, self._path)
            else:
                self._fill(build, self._path, self._node, "template")
        self._build.problems.adopt(problems, lambda problem: scope.hides(problem.path))
        self._build.warnings.adopt(build.warnings, lambda problem: scope.hides(problem.path))
        self._warned = {
            (warning.file, warning.line, warning.message) for warning in build.warnings if not scope.hides(warning.path)
        }
        self._secrets = problems.secrets
        self._check_name(scope)
        if self._node is not None:
            self._check_sources(self._build, self._node, join(self._path, "template"))

    def _check_name(self, scope: Scope) -> None:
        """Refuse a name that all members would share, or that no member could have."""
        name, where = self._section.entries["name"].node, join(self._path, "name")
        if where in scope.unknown:
            written = self._build.within(scope, Problems(self._file)).value(str, name, where)
            if not _NAME.fullmatch(written):
                self._build.fail(name, where, f"{written!r}, for instance, cannot be a name: {_NAME_RULE}")
        elif isinstance(name, document.Scalar) and id(name) not in self._varying:
            self._build.fail(name, where, "every member would have this name; write an expression such as ${name}")

    def _check_sources(self, build: Builder, node: document.Node, path: str) -> None:
        """Refuse a source with the same name as a source of the file."""
        sources = node.entries.get("sources") if isinstance(node, document.Mapping) else None
        if sources is None or not isinstance(sources.node, document.Mapping):
            return
        for name in sources.node.entries.keys() & self._classes.keys():
            place = sources.node.place(name, join(path, "sources"))
            build.problems.add(*place, "the file has a source of this name; give this one another")

    def expand(self, member: Member) -> MemberCluster:
        """Fill the template with the values of a member. Raises ConfigurationError."""
        path, problems = self._path_of(member.id), Problems(self._file)
        fault = _printable(member.problem) or fault_of(member.id, "its id")
        if fault is not None:
            problems.add(self._section.line, path, fault)
            raise self._error(problems)
        node, key, scope = self._node, "template", self._scope(member)
        try:
            if node is None:
                key, line = "spec", self._section.line
                node = document.from_json(member.template, line, problems, join(path, key))
                scope = dataclasses.replace(scope, varying=scope.varying | set(ids(node)), own=True)
            build = self._build.within(scope, problems)
            if scope.own:
                self._check_sources(build, node, join(path, key))
            name, cluster, sources = self._fill(build, path, node, key)
        except Invalid as error:
            raise self._error(problems) from error
        if problems:
            raise self._error(problems)
        warnings = Problems(self._file)
        warnings.adopt(build.warnings, lambda found: (found.file, found.line, found.message) in self._warned)
        return MemberCluster(
            id=member.id,
            name=name,
            cluster=cluster,
            sources=sources,
            warnings=self._error(warnings).problems if warnings else (),
            secrets=frozenset(problems.secrets),
        )

    def _scope(self, member: Member | None) -> Scope:
        return Scope(self._variables, member, self._varying, self._fixed)

    def _error(self, problems: Problems) -> ConfigurationError:
        for secret in self._secrets:  # also those in values that are read only once
            problems.hide(secret)
        return problems.error()

    def problem(self, member: str, message: str, key: str = "name") -> str:
        """A problem of a member, as a line like those of `expand`."""
        problems = Problems(self._file)
        entry, path = self._section.entries["name"], self._path_of(member)
        if key != "name" and isinstance(self._node, document.Mapping):
            entry, path = self._node.entries[key], join(path, "template")
        elif key != "name":
            path = join(path, "spec")
        problems.add(entry.line, join(path, key), message)
        return problems.error().problems[0]

    def _path_of(self, member: str) -> str:
        return f"{self._path}[{join('', member)}]"

    def _fill(
        self, build: Builder, path: str, node: document.Node, key: str
    ) -> tuple[str, Cluster, dict[str, SourcePlugin]]:
        """The name, the cluster and the sources for the member in the builder's scope. Raises Invalid."""
        name = self._name(build, path)
        path = join(path, key)
        mapping = build.mapping(node, path, ClusterSection)
        classes = source_classes(build, mapping, path)
        sources = self._own_sources(build, mapping, path)
        reader = ClusterReader(build, {**classes, **self._classes}, Owners(), self._time_zone)
        cluster = reader.read(name or PLACEHOLDER, mapping, path, taken=("sources",))
        known = {**self._sources, **(sources or {})}
        reader.check_queries(cluster, known, path)
        reader.warn(cluster, known, path)
        if name is None or sources is None:
            raise Invalid
        parts: dict[str, list[object]] = {
            "target": [cluster.target],
            "engine": [cluster.engine],
            "sources": [*sources.values()],
        }
        for place, plug_ins in parts.items():
            for part in plug_ins if place in mapping.entries else ():
                with contained(part, build.problems, *mapping.place(place, path)):
                    plugins.hash_key(part)  # also done later to find equal ones, where a failure would affect all
        metrics = {
            key: dataclasses.replace(metric, source=f"{name}/{metric.source}") if metric.source in sources else metric
            for key, metric in cluster.metrics.items()
        }
        return (
            name,
            dataclasses.replace(cluster, metrics=metrics),
            {f"{name}/{key}": source for key, source in sources.items()},
        )

    def _name(self, build: Builder, path: str) -> str | None:
        """The name of the cluster, or None if it is not usable."""
        node, path = self._section.entries["name"].node, join(path, "name")
        try:
            name: str = build.value(str, node, path)
        except Invalid:
            return None
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            build.fail(node, path, f"{name!r} cannot be a name: {_NAME_RULE}")
            return None
        return name

    def _own_sources(self, build: Builder, mapping: document.Mapping, path: str) -> dict[str, SourcePlugin] | None:
        """The sources of the template by their names in it, or None if one is not usable."""
        if "sources" not in mapping.entries:
            return {}
        node, path = mapping.entries["sources"].node, join(path, "sources")
        try:
            return build.entries(node, path, partial(read_source, build))
        except Invalid:
            return None


def _printable(text: str | None) -> str:
    """A text of a discovery, with its unprintable characters replaced: no escape sequences for terminals."""
    return "".join(c if c.isprintable() or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text or "")


@dataclass(frozen=True, slots=True)
class Assembled:
    """The static clusters and the members of all fleets as one configuration.

    Attributes:
        config: with their clusters and sources.
        members: name of a member's cluster -> its fleet and the member's id.
        refused: fleet -> id of a member that has no cluster -> the problem, as `file:line: path: message`.
    """

    config: Config
    members: Mapping[str, tuple[str, str]]
    refused: Mapping[str, Mapping[str, str]]


def assemble(
    config: Config,
    found: Mapping[str, Sequence[MemberCluster]],
    present: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    held: Collection[tuple[str, str]] = (),
) -> Assembled:
    """Add the members of fleets to the clusters of a configuration.

    If two have the same name or equal targets, the first one keeps it and the other is refused. The order is: the
    clusters of the file, members that run already, other members by fleet and id, members that are held.

    Args:
        config: the configuration as it was loaded.
        found: fleet -> its members.
        present: `Assembled.members` of what runs now.
        held: fleets and ids of members that are no longer found: a member that is found takes their name and target.
    """
    owners = Owners()
    for name, cluster in config.clusters.items():
        owners.take(cluster.target, name)
    clusters, sources = dict(config.clusters), dict(config.sources)
    members: dict[str, tuple[str, str]] = {}
    refused: dict[str, dict[str, str]] = {fleet: {} for fleet in found}
    warnings, secrets = list(config.warnings), set(config.secrets)
    ordered = [
        ((fleet, member.id) in held, present.get(member.name) != (fleet, member.id), index, member.id, fleet, member)
        for index, (fleet, of_fleet) in enumerate(found.items())
        for member in of_fleet
    ]
    for *_, fleet, member in sorted(ordered, key=lambda item: item[:4]):
        problem = _conflict(config, fleet, member, clusters, members, owners)
        if problem is not None:
            refused[fleet][member.id] = problem
            continue
        clusters[member.name] = member.cluster
        members[member.name] = (fleet, member.id)
        sources |= member.sources
        warnings += member.warnings
        secrets |= member.secrets
    whole = dataclasses.replace(
        config, clusters=clusters, sources=sources, warnings=tuple(warnings), secrets=frozenset(secrets)
    )
    return Assembled(whole, members, refused)


def _conflict(
    config: Config,
    fleet: str,
    member: MemberCluster,
    clusters: Mapping[str, Cluster],
    members: Mapping[str, tuple[str, str]],
    owners: Owners,
) -> str | None:
    """Why a member cannot be added to these clusters. None: it can be added, and owns its target now."""
    template = config.fleets[fleet].template
    if member.name in members:
        other, its_id = members[member.name]
        whose = "" if other == fleet else f" of the fleet {other}"
        return template.problem(member.id, f"the member {its_id!r}{whose} has the name {member.name!r} already")
    if member.name in clusters:
        return template.problem(member.id, f"{member.name!r} is the name of a cluster in the file")
    try:
        owner = owners.take(member.cluster.target, member.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plug-in may fail in any way
        return template.problem(
            member.id, f"{type(member.cluster.target).__name__} failed: {format_exception(error)}", "target"
        )
    return None if owner is None else template.problem(member.id, f"cluster {owner!r} {SAME_TARGET}", "target")
