"""Reads the whole configuration file: its sections, and the checks that concern several of them."""

from __future__ import annotations

import dataclasses
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from autoscaler.config import include
from autoscaler.config.build import Builder
from autoscaler.config.cluster import ClusterReader, Owners, check_name, read_source, source_classes
from autoscaler.config.document import Invalid, Node, Problems, join
from autoscaler.config.document import Mapping as MappingNode
from autoscaler.config.fleets import Template
from autoscaler.config.include import OWN
from autoscaler.config.model import Cluster, Config, DaemonSpec, FleetSpec, TlsSpec, TokenSpec
from autoscaler.config.sections import DIRECTORY, SCALED, FileSections, FleetSection
from autoscaler.plugins import Kind, install_hint, is_installed
from autoscaler.ports import Secret, SourcePlugin

_PASSWORD = re.compile(r"://[^/@:]*:(.+)@")


def load(path: Path, environ: Mapping[str, str], root: Node | None = None, *, offline: bool = False) -> Config:
    """Read and validate a configuration file.

    Args:
        path: the YAML file. Relative paths in it are relative to its directory.
        environ: the variables that `${NAME}` may name, normally `os.environ`.
        root: the content of the file and its includes, if it was read before (`include.read`) and changed.
        offline: whether the caller connects to nothing. Then variables of secrets may be unset, and packages that
            plug-ins need to connect may be missing. Secrets are parameters of that type, such as `token`, and strings
            whose key or variable has a name like one, such as `${API_TOKEN}`. Every other variable must be set.

    Raises:
        ConfigurationError: the file is not usable; all problems together, each as `file:line: path: message`.
    """
    problems = Problems(str(path))
    build = Builder(problems, path.parent.absolute(), environ, offline=offline)
    file = _File(path, problems, build, offline=offline)
    try:
        config = file.read(include.read(path, problems) if root is None else root)
    except Invalid:
        config = None
    if problems or config is None:
        raise problems.error()
    return config


def server_context(spec: TlsSpec) -> ssl.SSLContext:
    """The TLS context of the HTTP endpoints. Raises OSError, which includes `ssl.SSLError`, and ValueError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, spec)
    return context


def load_certificate(context: ssl.SSLContext, spec: TlsSpec) -> None:
    """Load the certificate from its file, for new connections. Raises like `server_context`."""
    # With the empty password an encrypted key fails; without a password OpenSSL would ask at the terminal.
    context.load_cert_chain(spec.certificate, spec.key, password="")


class _File:
    """Reads one file, every section as far as possible, so that all problems are reported together."""

    def __init__(self, path: Path, problems: Problems, build: Builder, *, offline: bool) -> None:
        self._path = path
        self._problems = problems
        self._build = build
        self._offline = offline
        self._classes: dict[str, type[Any] | None] = {}
        self._sources: dict[str, SourcePlugin] = {}
        self._time_zone = "UTC"

    def read(self, node: Node) -> Config:
        """Read the file. Raises Invalid if it is not usable; its problems are recorded."""
        build = self._build
        root = build.mapping(node, "", FileSections)
        own = tuple(key for key in root.entries if key.startswith(OWN))
        self._classes = source_classes(build, root, "")
        daemon = DaemonSpec(directory=self._path.parent.absolute() / DIRECTORY)
        if "daemon" in root.entries:
            # First, because it has the default time zone of the clusters. Its problems are recorded.
            with suppress(Invalid):
                daemon = self._daemon(root.entries["daemon"].node, root.place("daemon", "")[1], daemon)
        self._time_zone = daemon.time_zone
        clusters = ClusterReader(build, self._classes, Owners(), daemon.time_zone)
        readers = {
            "daemon": lambda _node, _path: daemon,
            "sources": lambda node, path: build.entries(node, path, self._source),
            "clusters": lambda node, path: self._clusters(node, path, clusters),
            "fleets": lambda node, path: build.entries(node, path, self._fleet),
        }
        read = build.fields(FileSections, root, "", taken=own, readers=readers)
        if root.entries.keys().isdisjoint(SCALED):
            raise self._problems.fail(root.line, "clusters", "missing; expected a mapping, here or in fleets")
        if not read.complete:
            raise Invalid
        config = Config(
            path=self._path,
            daemon=daemon,
            sources=self._sources,
            clusters=read.values.get("clusters", {}),
            fleets=read.values.get("fleets", {}),
        )
        for name, cluster in config.clusters.items():
            clusters.check_queries(cluster, config.sources, join("clusters", name))
        for name, cluster in config.clusters.items():
            clusters.warn(cluster, config.sources, join("clusters", name))
        return dataclasses.replace(
            config, warnings=build.warnings.error().problems, secrets=frozenset(self._problems.secrets)
        )

    def _daemon(self, node: Node, path: str, default: DaemonSpec) -> DaemonSpec:
        spec = self._build.dataclass(DaemonSpec, node, path, default)
        if self._offline:
            return spec
        mapping = self._build.mapping(node, path, DaemonSpec)
        self._check_state(spec, mapping, path)
        if spec.tracing and not is_installed("opentelemetry.exporter.otlp.proto.http"):
            message = f"needs OpenTelemetry's SDK and OTLP exporter, which are not installed: {install_hint('otel')}"
            raise self._problems.fail(*mapping.place("tracing", path), message)
        if spec.tls is not None:
            try:
                server_context(spec.tls)
            except (OSError, ValueError) as error:
                message = (
                    f"{spec.tls.certificate} and {spec.tls.key} cannot be used: {error}; expected PEM files of a "
                    "certificate and its private key, which has no password"
                )
                raise self._problems.fail(*mapping.place("tls", path), message) from error
        if not spec.tokens:
            return spec
        tokens: list[TokenSpec] = []
        line, where = mapping.place("tokens", path)
        for index, token in enumerate(spec.tokens):
            try:
                tokens.append(self._token(token))
            except (OSError, ValueError) as error:
                message = f"{token.token_file} cannot be used: {getattr(error, 'strerror', None) or error}"
                raise self._problems.fail(line, join(join(where, index), "token_file"), message) from error
            same = next((other.name for other in tokens[:-1] if other.token == tokens[-1].token), None)
            if same is not None:
                raise self._problems.fail(line, join(where, index), f"has the same token as {same}")
        return dataclasses.replace(spec, tokens=tuple(tokens))

    def _check_state(self, spec: DaemonSpec, mapping: MappingNode, path: str) -> None:
        if spec.state is None:
            return
        if found := _PASSWORD.search(spec.state):
            # The whole URL is hidden already, but a message may contain only the password.
            self._problems.hide(found[1])
            self._problems.hide(unquote(found[1]))
        if not spec.state.startswith(("postgresql://", "postgres://")):
            line, where = mapping.place("state", path)
            message = "expected postgresql://USER:PASSWORD@HOST/DATABASE; without it, state is kept in the directory"
            raise self._problems.fail(line, where, message)

    def _token(self, spec: TokenSpec) -> TokenSpec:
        """A token with the content of its file. Raises OSError, and ValueError, which includes ParameterError."""
        if spec.token_file is None:
            return spec
        token = Secret(spec.token_file.read_text().strip())
        self._problems.hide(token)
        return dataclasses.replace(spec, token=token, token_file=None)

    def _source(self, name: str, node: Node, path: str) -> SourcePlugin:
        source: SourcePlugin = read_source(self._build, name, node, path)
        self._sources[name] = source
        return source

    def _clusters(self, node: Node, path: str, reader: ClusterReader) -> dict[str, Cluster]:
        def read(name: str, node: Node, path: str) -> Cluster:
            check_name(name, node, path, self._build)
            return reader.read(name, node, path)

        clusters = self._build.entries(node, path, read)
        if not clusters:
            raise self._build.fail(node, path, "at least one cluster is needed")
        return clusters

    def _fleet(self, name: str, node: Node, path: str) -> FleetSpec:
        build = self._build
        check_name(name, node, path, build)
        mapping = build.mapping(node, path, FleetSection)
        as_it_is = dict.fromkeys(("name", "template"), lambda node, _: node)
        read = build.fields(FleetSection, mapping, path, readers=as_it_is)
        discovery = None
        if "discover" in mapping.entries:
            discovery = build.plugin_class(Kind.DISCOVERY, mapping.entries["discover"].node, join(path, "discover"))
        brought = getattr(discovery, "brings_templates", False)
        if not brought and "template" not in mapping.entries:
            self._problems.add(mapping.line, join(path, "template"), "missing; expected a mapping")
        if brought and "template" in mapping.entries:
            message = "must be left out: the members of this discovery have templates of their own"
            self._problems.add(*mapping.place("template", path), message)
        if discovery is None or "name" not in mapping.entries or brought == ("template" in mapping.entries):
            raise Invalid
        template = Template(path, mapping, discovery.variables, self._classes, self._sources, build, self._time_zone)
        template.check()
        if not read.complete:
            raise Invalid
        section = build.construct(FleetSection, mapping, path, read.values)
        return FleetSpec(
            name=name,
            discover=section.discover,
            interval=section.interval,
            confirm=section.confirm,
            template=template,
        )
