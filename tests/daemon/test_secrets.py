"""No secret of the configuration leaves the daemon, whatever a server echoes."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from datetime import timedelta
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler import config
from autoscaler.config.model import LogFormat
from autoscaler.daemon.history import History
from autoscaler.daemon.logging import setup
from autoscaler.daemon.service import Daemon
from autoscaler.daemon.state_store import open_state_store

PASSWORD = 'hunter"22/hunter'
BASIC = b64encode(f"scaler:{PASSWORD}".encode()).decode()
FORMS = (PASSWORD, json.dumps(PASSWORD)[1:-1], quote(PASSWORD, safe=""), BASIC)

CONFIG = """
daemon: {{directory: var, listen: "127.0.0.1:0", pack: false}}
sources:
  job: {{type: flink, url: "{url}", username: scaler, password: "${{PASSWORD}}"}}
clusters:
  a:
    interval: 200ms
    timeout: 190ms
    target: {{type: advice, size: 2}}
    min: 1
    max: 4
    metrics: {{lag: {{source: job, metric: lag}}}}
    policies: {{drain: {{type: target-tracking, metric: lag, target: 100}}}}
"""


def all_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("log_format", LogFormat)
@pytest.mark.parametrize("at", [0, 60])
async def test_a_server_that_echoes_its_requests_reveals_no_secret(
    tmp_path: Path, log_format: LogFormat, at: int
) -> None:
    async def echo(request: web.Request) -> web.Response:
        sent = request.headers["Authorization"]
        text = json.dumps({"errors": [f"{'x' * at} {sent}; {quote(PASSWORD, safe='')}; {PASSWORD}"]})
        return web.Response(status=400, text=text, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", echo)
    lines = StringIO()
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        file = tmp_path / "config.yaml"
        file.write_text(CONFIG.format(url=f"http://127.0.0.1:{server.port}"))
        read = config.load(file, {"PASSWORD": PASSWORD})
        setup(log_format, lines)
        try:
            async with open_state_store(tmp_path / "var", decisions=100) as store:
                history = History(tmp_path / "var" / "history", timedelta(days=1), compress=False)
                await history.start()
                daemon = Daemon(read, lambda: read, store, history)
                work = asyncio.create_task(daemon.run())
                shown = ""
                async with asyncio.timeout(60):
                    while "***" not in shown:
                        await asyncio.sleep(0.05)
                        if daemon.url:
                            for path in ("clusters", "clusters/a", "clusters/a/decisions"):
                                async with session.get(f"{daemon.url}/api/v1/{path}") as response:
                                    shown += await response.text()
                logging.getLogger("autoscaler.test").warning("a library logs %s", BASIC, extra={"sent": FORMS})
                daemon.stop()
                await work
                await history.close()
        finally:
            logging.getLogger().handlers = [h for h in logging.getLogger().handlers if h.get_name() != "autoscaler"]
    kept = all_of(tmp_path / "var")
    assert b"***" in kept
    assert "***" in lines.getvalue()
    for form in FORMS:
        # A shortened text must not show the beginning of a secret either.
        for text in (shown, lines.getvalue(), kept.decode(errors="replace")):
            assert form not in text
            assert form[:14] not in text
