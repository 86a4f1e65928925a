"""The content of a configuration file as frozen dataclasses, for the daemon and the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Protocol
from urllib.parse import urlsplit

from autoscaler.config.build import Plugin
from autoscaler.config.template import TextTemplate
from autoscaler.core.model import ClusterSpec
from autoscaler.core.parameters import ParameterError
from autoscaler.core.workload_profile import local_seconds
from autoscaler.plugins import Kind
from autoscaler.ports import (
    DiscoveryPlugin,
    EnginePlugin,
    Member,
    NotificationKind,
    NotifierPlugin,
    Secret,
    Severity,
    SourcePlugin,
    TargetPlugin,
)

_HIGHEST_PORT = 65535

_URL = re.compile(r"https?://[^\s/?#@]+/?")


class LogFormat(StrEnum):
    """The format of log lines."""

    CONSOLE = "console"
    JSON = "json"


class Rights(StrEnum):
    """What the owner of a token may do. The right to write includes the right to read."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpec:
    """One bearer token of the HTTP endpoints.

    Attributes:
        name: the owner of the token; the audit records this name with each change.
        rights: with `write`, the owner may pause, hold, limit, resume and request a decision; with `read` only read.
        token: the token itself, 16 characters or more: `${NAME}`.
        token_file: instead of `token`, a file with the token as its only line. It is read again at SIGHUP.
        expires: when the token expires: a date (at its beginning in UTC) or a time with its zone. Default: never.
    """

    name: str
    rights: Rights
    token: Secret | None = None
    token_file: Path | None = None
    expires: datetime | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.@-]{1,63}", self.name):
            raise ParameterError("name", "is 1 to 63 letters, digits, `_`, `.`, `-`, `@`")
        if (self.token is None) == (self.token_file is None):
            raise ParameterError("token", "set either this or token_file")
        if self.token is not None and not re.fullmatch(r"[!-~]{16,}", self.token):
            raise ParameterError(
                "token", "must be 16 or more characters of ASCII without spaces; `openssl rand -hex 32` makes one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSpec:
    """TLS of the HTTP endpoints.

    Attributes:
        certificate: PEM file with the certificate and the intermediate ones. Both files are read again at SIGHUP.
        key: PEM file with its private key, without a password.
    """

    certificate: Path
    key: Path


NOTIFICATION_VARIABLES = ("cluster", "kind", "severity", "message", "time")
"""What the text of a notification may name."""

_TEXT = TextTemplate("${severity}: ${cluster}: ${message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSpec:
    """One receiver of notifications.

    Attributes:
        to: where notifications are sent.
        kinds: the kinds sent, as patterns such as `rescale-*`: `rescale-begun`, `rescale-ended`, `rescale-failed`,
            `trouble-begun`, `trouble-ended`, `control-set`, `control-expiring`, `control-ended`, `at-maximum-begun`,
            `at-maximum-ended`, `owner-changed`.
        severity: the lowest severity that is sent.
        clusters: the clusters whose notifications are sent, as names or patterns.
        text: text of a message to people; it may name `${cluster}`, `${kind}`, `${severity}`, `${message}`, `${time}`.
        rate: maximum number of messages per minute. Further notifications wait, and are sent as one message.
    """

    to: Annotated[NotifierPlugin, Plugin(Kind.NOTIFIER)]
    kinds: tuple[str, ...] = ("*",)
    severity: Severity = Severity.INFO
    clusters: tuple[str, ...] = ("*",)
    text: TextTemplate = _TEXT
    rate: int = 20

    def __post_init__(self) -> None:
        for pattern in self.kinds:
            if not any(fnmatchcase(kind, pattern) for kind in NotificationKind):
                raise ParameterError("kinds", f"{pattern!r} matches none of {', '.join(NotificationKind)}")
        if self.rate < 1:
            raise ParameterError("rate", f"must be 1 or more, not {self.rate}")
        try:
            self.text.check(NOTIFICATION_VARIABLES)
        except ValueError as error:
            raise ParameterError("text", str(error)) from error

    def wants(self, kind: NotificationKind, severity: Severity, cluster: str) -> bool:
        """Whether a notification is sent."""
        ranks = list(Severity)  # the worst first
        return (
            ranks.index(severity) <= ranks.index(self.severity)
            and any(fnmatchcase(kind, pattern) for pattern in self.kinds)
            and any(fnmatchcase(cluster, pattern) for pattern in self.clusters)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """Settings of the daemon itself (`daemon:`).

    Attributes:
        directory: where state, decisions and history are kept; relative to the configuration file.
        state: a PostgreSQL database that keeps state and decisions instead of the directory,
            `postgresql://USER:PASSWORD@HOST/DATABASE`: several copies of the daemon may share it.
        listen: address and port of the HTTP endpoints, `host:port`; port 0 takes a free port.
        advertise: URL under which other copies that share `state` reach this one. Default: made from `listen`; if that
            is every address, with the address of the pod (POD_IP) or the name of the machine.
        hosts: further names under which clients reach the HTTP endpoints, such as that of a reverse proxy. Addresses,
            names without a dot and names of Kubernetes services are always allowed; all others are refused.
        tokens: who may make changes over HTTP; without tokens, nobody may.
        tls: the certificate of the HTTP endpoints. Tokens need it, unless `listen` is a loopback address.
        read_needs_token: whether reading needs a token too, except for `/healthz` and the page itself.
        log: format of the log lines.
        decisions: how many decisions of each cluster are kept for the API and `explain`.
        history: how long the hourly history files are kept.
        pack: whether the files of past hours are compressed.
        notifications: receivers of events of the clusters, by a name of your choice.
        tracing: whether ticks are traced, by OpenTelemetry. The environment variables `OTEL_*` set the destination.
        time_zone: the `time_zone` of clusters that do not set it, such as Europe/Berlin.
    """

    directory: Path
    state: Secret | None = None
    listen: str = "127.0.0.1:8765"
    advertise: str | None = None
    hosts: tuple[str, ...] = ()
    tokens: tuple[TokenSpec, ...] = ()
    tls: TlsSpec | None = None
    read_needs_token: bool = False
    log: LogFormat = LogFormat.CONSOLE
    decisions: int = 500
    history: timedelta = timedelta(days=7)
    pack: bool = True
    notifications: Mapping[str, NotificationSpec] = field(default_factory=dict)
    tracing: bool = False
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        host, colon, port = self.listen.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT):
            raise ParameterError(
                "listen", f"must be host:port with a port from 0 to {_HIGHEST_PORT}, not {self.listen!r}"
            )
        if self.advertise is not None and not _URL.fullmatch(self.advertise):
            raise ParameterError("advertise", f"must be a URL like http://10.0.0.7:8765, not {self.advertise!r}")
        clear = urlsplit(self.advertise or "")
        if self.tokens and clear.scheme == "http" and not _is_loopback(clear.hostname or ""):
            raise ParameterError(
                "advertise", f"is {self.advertise}: other copies would pass tokens on in clear text; use https"
            )
        if self.tokens and self.tls is None and not self.loopback:
            raise ParameterError(
                "tokens",
                f"would be sent in clear text to daemon.listen, {self.listen}: set daemon.tls, or listen on 127.0.0.1",
            )
        names = [token.name for token in self.tokens]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ParameterError("tokens", f"two tokens have the name {twice}")
        if self.read_needs_token and not self.tokens:
            raise ParameterError("read_needs_token", "needs tokens: without them, nobody could read")
        if self.decisions < 1:
            raise ParameterError("decisions", f"must be 1 or more, not {self.decisions}")
        if self.history <= timedelta(0):
            raise ParameterError("history", "must be above 0s")
        try:
            local_seconds(0.0, self.time_zone)
        except ValueError as error:
            raise ParameterError("time_zone", str(error)) from error

    def expired(self, now: datetime) -> tuple[str, ...]:
        """The tokens that have expired and are refused, each as `path: message`."""
        return tuple(
            f"daemon.tokens[{index}].expires: {describe_expiry(token.name, token.expires)}"
            for index, token in enumerate(self.tokens)
            if token.expires is not None and token.expires <= now
        )

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches `listen`."""
        return _is_loopback(self.listen.rpartition(":")[0].removeprefix("[").removesuffix("]"))


def describe_expiry(name: str, expires: datetime) -> str:
    """A text that a token has expired, and when."""
    return f"the token of {name} has expired, at {expires.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Metric:
    """Where one metric of a cluster comes from: a source by its name, and that source's query."""

    source: str
    query: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster: the specification for the core, and its plug-ins.

    Attributes:
        interval: time between two ticks.
        timeout: time in which the metrics, the engine and the target must answer; shorter than the interval.
        max_values: a reading with more numbers or parts counts as missing, unless its mean is known.
        time_zone: the time zone of the people who cause its load, an IANA name.
    """

    spec: ClusterSpec
    target: TargetPlugin
    engine: EnginePlugin | None
    metrics: Mapping[str, Metric]
    interval: timedelta
    timeout: timedelta
    max_values: int = 1000
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCluster:
    """A member of a fleet with its template filled.

    Attributes:
        id: the id of the member.
        name: the name of its cluster.
        sources: the sources that the template adds, under their names in the whole configuration: `CLUSTER/SOURCE`.
        warnings: probable mistakes that the template itself does not have, each as `file:line: path: message`.
        secrets: the secrets among the values of its variables.
    """

    id: str
    name: str
    cluster: Cluster
    sources: Mapping[str, SourcePlugin]
    warnings: tuple[str, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


class FleetTemplate(Protocol):
    """The template of a fleet's clusters."""

    def expand(self, member: Member) -> MemberCluster:
        """Fill the template with the values of a member. This needs no I/O, and takes about a millisecond.

        Raises:
            ConfigurationError: it cannot be filled; its lines are `file:line: fleets.FLEET[ID].KEY: message`.
        """
        ...

    def problem(self, member: str, message: str, key: str = "name") -> str:
        """A problem of a member, by its id, as a line like those of `expand`; `key` is `name` or `target`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """One fleet: clusters that a discovery finds.

    Attributes:
        interval: time between two runs of the discovery.
        confirm: how long a loss of half of the members or more must last before they are removed.
    """

    name: str
    discover: DiscoveryPlugin
    interval: timedelta
    confirm: timedelta
    template: FleetTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration file, validated.

    Attributes:
        clusters: the clusters in the file; after `fleets.assemble` also the members of fleets.
        warnings: probable mistakes and former names, each as `file:line: path: message`.
        secrets: the secrets in the file and among the values of its variables.
    """

    path: Path
    daemon: DaemonSpec
    sources: Mapping[str, SourcePlugin]
    clusters: Mapping[str, Cluster]
    fleets: Mapping[str, FleetSpec] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
