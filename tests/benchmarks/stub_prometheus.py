"""A stub Prometheus server: every query gets one sample for each of N clusters. Prints its port, serves until killed.

Usage: stub_prometheus.py CLUSTERS
"""

import json
import math
import sys
import time

from aiohttp import web

CLUSTERS = int(sys.argv[1])
bodies: dict[tuple[str, int], bytes] = {}


async def query(request: web.Request) -> web.Response:
    parameters = await request.post() if request.method == "POST" else request.query
    text, now = str(parameters["query"]), int(time.time())
    key = (text, now)
    if key not in bodies:
        for old in [other for other in bodies if other[1] < now]:
            del bodies[old]
        bodies[key] = body(text, now)
    return web.Response(body=bodies[key], content_type="application/json")


def body(text: str, now: int) -> bytes:
    wave = 1 + 0.3 * math.sin(now / 20)
    level = {"lag": 50.0, "arrivals": 300.0, "throughput": 300.0}
    samples = []
    for number in range(CLUSTERS):
        value = float(now) if text.startswith("timestamp") else level[text] * wave * (0.8 + number % 5 / 10)
        metric = {"cluster": f"c{number:04}", "job": "stub", "instance": "10.0.0.1:9100"}
        samples.append({"metric": metric, "value": [now, f"{value:.3f}"]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": samples}}).encode()


async def tell(runner: web.AppRunner) -> None:
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - read by the parent


async def main() -> None:
    import asyncio  # noqa: PLC0415

    app = web.Application()
    app.add_routes([web.get("/api/v1/query", query), web.post("/api/v1/query", query)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await tell(runner)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
