"""Fixtures of the tests that use AWS. A module loads them by `pytest_plugins = ("tests.clients.aws_fixtures",)`."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
import urllib.error
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from autoscaler.demo.processes import free_port
from tests.clients.aws_server import Moto, Proxy


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    log = tmp_path_factory.mktemp("moto") / "log"
    port = free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out
        )
    server = Moto(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                server.post("/moto-api/reset")
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None or time.monotonic() > deadline:
                    reason = f"moto's server does not start: {log.read_text()[-500:]}"
                    if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
                        pytest.fail(reason)
                    pytest.skip(reason)
                time.sleep(0.05)
        yield server
        for client in server.clients.values():
            client.close()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Fake credentials in the environment, the only ones that a test uses; returns the id of the key."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    key = f"AKIA{secrets.token_hex(8).upper()}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets.token_hex(20))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    return key


@pytest.fixture
async def proxy(moto: Moto, identity: str) -> AsyncIterator[Proxy]:
    del identity
    between = Proxy(moto)
    application = web.Application(client_max_size=16 * 2**20)
    application.router.add_route("*", "/{path:.*}", between.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    between.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(auto_decompress=False) as between.session:
        yield between
        await runner.cleanup()
