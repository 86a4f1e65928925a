"""Servers that answer like Prometheus, or as no server should."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from autoscaler.core.model import Reading
from autoscaler.sources.prometheus import Prometheus, Query
from autoscaler.testing.contracts import LocalShared

EVALUATED = 1_767_225_600.5  # the time of the evaluation in every answer; the samples are older
NOW = dt.datetime(2026, 1, 1, 0, 0, 1, tzinfo=dt.UTC)

Result = list[dict[str, Any]]


def vector(*samples: tuple[dict[str, str], str], at: float = EVALUATED) -> dict[str, Any]:
    """An answer with samples `(labels, value)`."""
    result = [{"metric": labels, "value": [at, value]} for labels, value in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@dataclass
class Stub:
    """A server whose answers the test sets: PromQL expression -> JSON, or the result of `respond`."""

    answers: dict[str, Any] = field(default_factory=dict)
    respond: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def queries(self) -> list[str]:
        return [request["query"] for request in self.requests]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.headers.append(dict(request.headers))
        if self.respond is not None:
            return await self.respond(request)
        return web.json_response(self.answers[request.query["query"]])


@asynccontextmanager
async def stub(tls: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[Stub]:
    server = Stub(**settings)
    application = web.Application()
    application.router.add_get("/api/v1/query", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """A server below HTTP: `handle` gets every connection once the head of the request has been read."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, as it should
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read(plugin: Prometheus, query: Query | str, now: dt.datetime = NOW) -> Reading:
    """Read one metric with a source opened for it alone."""
    async with LocalShared() as shared, plugin.connect(shared) as source:
        return await source.collect(Query(query=query) if isinstance(query, str) else query, now)


def at(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


@dataclass
class Authority:
    """A certificate authority for one test.

    Attributes:
        ca: PEM file with its certificate.
        certificate: PEM file with the certificate of 127.0.0.1 and localhost.
        key: PEM file with its key.
    """

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> Authority:
        now = dt.datetime.fromtimestamp(EVALUATED, dt.UTC)
        made = cls(directory / "ca.pem", directory / "server.pem", directory / "server.key")
        root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "An authority for one test")])
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        ten_years = dt.timedelta(days=3650)

        def signed(
            subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: tuple[Any, bool]
        ) -> x509.Certificate:
            builder = x509.CertificateBuilder(root, subject, public, x509.random_serial_number())
            builder = builder.not_valid_before(now - ten_years).not_valid_after(now + ten_years)
            for extension, critical in extensions:
                builder = builder.add_extension(extension, critical)
            return builder.sign(root_key, hashes.SHA256())

        ca = signed(root, root_key.public_key(), (x509.BasicConstraints(ca=True, path_length=None), True))
        local = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        leaf = signed(name, key.public_key(), (x509.SubjectAlternativeName(local), False))
        pem = serialization.Encoding.PEM
        made.ca.write_bytes(ca.public_bytes(pem))
        made.certificate.write_bytes(leaf.public_bytes(pem))
        made.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return made

    def context(self) -> ssl.SSLContext:
        """The TLS context of a server with the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context
