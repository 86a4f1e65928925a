"""The settings and results of the Kafka client. This module does not import aiokafka, which belongs to an extra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from autoscaler.core.model import ZERO
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import EdgeError, Secret


class Isolation(StrEnum):
    """Which records consumers read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class SecurityProtocol(StrEnum):
    """Transport and login, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """How to log in, by Kafka's names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How to connect to a Kafka cluster; `autoscaler.sources.kafka.Kafka` describes each parameter."""

    bootstrap_servers: str
    _: KW_ONLY
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    sasl_mechanism: SaslMechanism | None = None
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret | None = None
    check_hostname: bool = True
    client_id: str = "reactive-autoscaler"
    timeout: timedelta = timedelta(seconds=3)
    attempts: int = 3
    fresh: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "security_protocol", SecurityProtocol(self.security_protocol))
        if self.sasl_mechanism is not None:
            object.__setattr__(self, "sasl_mechanism", SaslMechanism(self.sasl_mechanism))
        self.addresses()
        self._check_sasl()
        self._check_tls()
        if self.timeout <= ZERO:
            raise ParameterError("timeout", "must be above 0s")
        if self.attempts < 1:
            raise ParameterError("attempts", f"must be 1 or more, not {self.attempts}")
        if self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")
        if not self.client_id:
            raise ParameterError("client_id", "must not be empty")

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as pairs of host and port. Raises ValueError."""
        found = []
        for text in self.bootstrap_servers.split(","):
            match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/@\[\]]+)):(\d{1,5})", text.strip())
            if match is None or not 0 < int(match[3]) < 2**16:
                raise ParameterError(
                    "bootstrap_servers", f"must look like kafka-1:9092,kafka-2:9092; {text.strip()!r} does not"
                )
            found.append((match[1] or match[2], int(match[3])))
        return tuple(found)

    @property
    def sasl(self) -> bool:
        """Whether brokers require a login."""
        return self.security_protocol in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    def _check_sasl(self) -> None:
        given = [name for name in ("username", "password", "token", "token_file") if getattr(self, name) is not None]
        if not self.sasl:
            if self.sasl_mechanism is not None or given:
                what = given[0] if given else "sasl_mechanism"
                raise ParameterError(
                    what, f"has no effect with {self.security_protocol}; expected SASL_PLAINTEXT or SASL_SSL"
                )
            return
        if self.sasl_mechanism is None:
            raise ValueError(f"{self.security_protocol} needs sasl_mechanism: {', '.join(SaslMechanism)}")
        if self.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            if given not in (["token"], ["token_file"]):
                raise ValueError("OAUTHBEARER needs token or token_file, and neither username nor password")
        elif given != ["username", "password"]:
            raise ValueError(f"{self.sasl_mechanism} needs username and password, and no token")
        for name in ("password", "token"):
            secret = getattr(self, name)
            if secret is not None and (not secret or not secret.isprintable()):
                raise ParameterError(name, "must not be empty or contain a line break (is there one at its end?)")
        if self.username is not None and (not self.username or not self.username.isprintable()):
            raise ParameterError("username", "must not be empty or contain a line break")

    def _check_tls(self) -> None:
        if not self.tls:
            for name in ("ca_file", "certificate_file", "key_file", "key_password"):
                if getattr(self, name) is not None:
                    raise ParameterError(name, f"has no effect with {self.security_protocol}; expected SSL or SASL_SSL")
            if not self.check_hostname:
                raise ParameterError(
                    "check_hostname", f"has no effect with {self.security_protocol}; expected SSL or SASL_SSL"
                )
        if self.certificate_file is None and (self.key_file is not None or self.key_password is not None):
            raise ParameterError("certificate_file", "must be given together with key_file and key_password")


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The offsets of a topic at one time, by partition.

    Attributes:
        topic: its name.
        at: loop time at which the end offsets were requested.
        starts: offset of the first record that still exists.
        ends: end offset: the offset of the next record, or the last stable offset for `read_committed`.
        committed: group -> its committed offsets (None: nothing committed), or the error of that request.
    """

    topic: str
    at: float
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    committed: Mapping[str, Mapping[int, int | None] | EdgeError] = field(default_factory=dict)
