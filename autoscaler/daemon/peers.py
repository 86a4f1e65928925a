"""Requests to other copies of the daemon over HTTP: only the copy that controls a cluster knows its present state.

Other copies are trusted because the shared state store lists them. They check the client's token, which is passed on.
With TLS, they must have the same certificate as this copy.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from autoscaler.daemon.http_access import ACCESS
from autoscaler.daemon.http_requests import CONNECTIONS, STATUS, read_body
from autoscaler.daemon.leases import Ownership
from autoscaler.ports import Copy

FORWARDED = "Autoscaler-Forwarded"
"""The header of forwarded requests. A copy answers them itself, and forwards them no further."""

ASK_TIMEOUT = 5.0
"""Seconds that another copy may take to answer."""

FORWARD_TIMEOUT = 65.0
"""Seconds for a forwarded request about one cluster: a requested decision takes up to a minute."""

_CONNECT_TIMEOUT = 3.0

_PASSED = frozenset({hdrs.AUTHORIZATION, hdrs.CONTENT_TYPE})


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of another copy: a JSON object, which is empty if there is a `problem`."""

    copy: Copy
    body: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


class Peers:
    """The other copies.

    Args:
        ownership: knows the copies, and which of them controls a cluster.
        certificate: the certificate of this copy, or None without TLS.
    """

    def __init__(self, ownership: Ownership, certificate: Path | None) -> None:
        self._ownership = ownership
        self._certificate = certificate

    @classmethod
    def of(cls, request: web.Request) -> Self:
        """The peers of the copy that has received a request."""
        return cls(request.app[STATUS].ownership, request.app[ACCESS].certificate)

    async def ask(self, request: web.Request) -> list[Answer]:
        """The answers of all other copies to a request, sorted by their names. A failed request is a `problem`."""
        others = [copy for key, copy in self._ownership.copies.items() if key != self._ownership.me]
        others.sort(key=lambda copy: (copy.name, copy.url))
        return await asyncio.gather(*(self._ask(copy, request) for copy in others))

    async def forward(self, request: web.Request) -> web.Response:
        """The answer of the copy that controls the cluster of a request.

        Raises:
            HTTPServiceUnavailable: no copy controls the cluster, or it cannot be asked.
            StoreError: the store cannot tell which copy controls the cluster.
        """
        name = request.match_info["name"]
        await read_body(request)
        request.app[CONNECTIONS].extend(request.protocol, FORWARD_TIMEOUT)
        copy = await self._ownership.owner(name)
        if copy is None or copy.id == self._ownership.me:
            raise web.HTTPServiceUnavailable(
                text=f"no copy of the daemon controls cluster {name!r} at the moment: try again"
            )
        try:
            status, content_type, body = await self._send(copy, request, FORWARD_TIMEOUT)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = (
                f"cluster {name!r} is controlled by another copy of the daemon, {copy.name} ({copy.url}), "
                "which cannot be asked: "
            )
            raise web.HTTPServiceUnavailable(text=text + _problem(error, FORWARD_TIMEOUT)) from error
        return web.Response(status=status, body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _ask(self, copy: Copy, request: web.Request) -> Answer:
        try:
            status, _, body = await self._send(copy, request, ASK_TIMEOUT)
            found = await asyncio.to_thread(json.loads, body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(copy, problem=_problem(error, ASK_TIMEOUT))
        if not isinstance(found, dict) or status != web.HTTPOk.status_code:
            return Answer(copy, problem=f"it answers {status}")
        return Answer(copy, found)

    async def _send(self, copy: Copy, request: web.Request, seconds: float) -> tuple[int, str, bytes]:
        headers = {FORWARDED: "1"}
        headers |= {name: value for name, value in request.headers.items() if name in _PASSED}
        timeout = aiohttp.ClientTimeout(seconds, sock_connect=_CONNECT_TIMEOUT)
        # A new session for each request: requests are few, and a renewed certificate is used at once.
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=self._tls())) as session,
            session.request(
                request.method,
                URL(f"{copy.url}{request.rel_url.raw_path_qs}", encoded=True),
                data=await request.read(),
                headers=headers,
                allow_redirects=False,
            ) as answer,
        ):
            return answer.status, answer.headers.get(hdrs.CONTENT_TYPE, ""), await answer.read()

    def _tls(self) -> ssl.SSLContext | bool:
        if self._certificate is None:
            return True
        context = ssl.create_default_context(cafile=self._certificate)
        # Trust exactly this certificate, whoever has signed it and whatever names it is for: it is our own.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
        return context


def is_alone(request: web.Request) -> bool:
    """Whether this copy answers a request on its own: another copy has forwarded it, or there are no other copies."""
    return FORWARDED in request.headers or not request.app[STATUS].ownership.copies


def copies(ownership: Ownership, answers: Sequence[Answer]) -> list[dict[str, object]]:
    """All copies, for a document that combines their answers; this one first."""
    me = [copy for key, copy in ownership.copies.items() if key == ownership.me]
    return [
        {"name": answer.copy.name, "url": answer.copy.url, "problem": answer.problem}
        for answer in (*map(Answer, me), *answers)
    ]


def _problem(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    return str(error) or type(error).__name__
