"""Discovery `prometheus`: the values of a label in the result of a query."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlencode

from pydantic import Field

from autoscaler.clients.http import Answer, Endpoint, JsonClient
from autoscaler.clients.shared_requests import one_line
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, Discovery, Member, Secret, Shared

SHARE = 0.95  # of the time-out, for the server, so that the server reports the time-out itself


class _Sample(Answer):
    metric: dict[str, str]


class _Vector(Answer):
    kind: Annotated[Literal["vector"], Field(alias="resultType")]
    result: list[_Sample]


class _Result(Answer):
    status: Literal["success"]
    data: _Vector
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """The values of a label in the result of a query to Prometheus, or to a server with the same API.

    Attributes:
        url: the server's address, `http://` or `https://`, with its path prefix if it has one.
        query: a PromQL expression for an instant vector; each of its samples must have the label.
        label: name of the label.
        username: user for basic authentication. Default: none.
        password: the user's password.
        token: bearer token, instead of user and password. Default: none.
        ca_file: PEM file with the CA certificates for the server's certificate. Default: those of the system.
        headers: further HTTP headers, such as `X-Scope-OrgID`. They must not have secrets, because logs show them.
        timeout: time-out for one answer, including retries. Default 5s.
    """

    variables: ClassVar[tuple[str, ...]] = ("value", "labels")

    url: str
    _: KW_ONLY
    query: str
    label: str
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    ca_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", dict(sorted(self.headers.items())))
        self._endpoint()
        if not self.query.strip():
            raise ParameterError("query", "must not be empty, expected a PromQL expression")
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", self.label):
            raise ParameterError("label", f"must be the name of a label, not {self.label!r}")

    def __hash__(self) -> int:
        return hash((self._endpoint(), self.query, self.label))

    def _endpoint(self) -> Endpoint:
        return Endpoint(
            url=self.url.rstrip("/"),
            username=self.username,
            password=self.password,
            token=self.token,
            ca_file=self.ca_file,
            headers=tuple(self.headers.items()),
            timeout=self.timeout,
        )

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Discovery]:
        """Use the shared client of the server. The first `members` sends the first request."""
        yield _Live(self, await _Api.open(shared, self._endpoint()))


class _Api(JsonClient):
    expected = "an instant vector of Prometheus's API"

    def describe_error(self, body: bytes) -> str | None:
        """The error message of Prometheus."""
        try:
            return one_line(json.loads(body)["error"])
        except (ValueError, TypeError, LookupError, RecursionError):
            return super().describe_error(body)


class _Live:
    def __init__(self, plugin: Prometheus, client: _Api) -> None:
        self._label, self._client = plugin.label, client
        limit = f"{plugin.timeout.total_seconds() * SHARE:.3f}"
        self._path = f"/api/v1/query?{urlencode({'query': plugin.query, 'timeout': limit})}"
        self._where = f"{plugin.url}: query {one_line(plugin.query, 200)!r}"

    async def members(self) -> Sequence[Member]:
        """One member for each value, in order. `labels` are the labels that all samples with the value have in common.

        Raises:
            AnswerError: a sample lacks the label, or the answer may be partial (Thanos with a store down).
            EdgeError: there is no answer.
        """
        answer = await self._client.get(self._path, _Result)
        warnings = [text for text in answer.warnings if not text.startswith("PromQL info:")]
        if warnings:
            raise AnswerError(
                f"{self._where} was answered with a warning, so it may be partial: {one_line('; '.join(warnings))}"
            )
        common: dict[str, dict[str, str]] = {}
        for sample in answer.data.result:
            value = sample.metric.get(self._label)
            if not value:
                has = one_line(", ".join(sample.metric)) or "none"
                raise AnswerError(
                    f"{self._where}: a sample has no label {self._label!r}, but {has}; "
                    f'exclude such samples, for example with {self._label}!="" in the query'
                )
            labels = {name: text for name, text in sample.metric.items() if name != "__name__"}
            known = common.get(value, labels)
            common[value] = {name: text for name, text in labels.items() if known.get(name) == text}
        return [Member(value, {"value": value, "labels": common[value]}) for value in sorted(common)]
