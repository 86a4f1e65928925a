"""Read the settings of a standalone cluster's Master. Spark has no API that gives them to an application.

The Master shows its settings in its web UI. An application does not know the UI's port, so it asks the Master for its
ports over Spark's own RPC protocol.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.request import ProxyHandler, build_opener

from autoscaler.clients.spark_environment import read_settings

TIMEOUT = 2.0
"""Seconds after which a job starts without the settings."""

MAX_BYTES = 4 << 20
"""A longer page is not the Master's."""

log = logging.getLogger("autoscaler.injob.reactive")


@dataclass(frozen=True, slots=True)
class Master:
    """The settings of a Master, as far as they are known.

    Attributes:
        settings: a missing setting has Spark's default; None: not known.
        problem: why the settings could not be read; empty if they were read, the cluster has no such Master, or nobody
            asked it.
    """

    settings: Mapping[str, str] | None = None
    problem: str = ""


def addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each Master in a URL such as `spark://one:7077,two:7077`; empty for other cluster managers."""
    if not master.startswith("spark://"):
        return []
    pairs = (one.rpartition(":") for one in master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in pairs if host and port.isdecimal()]


def read_master(spark: Any, timeout: float = TIMEOUT) -> Master:  # noqa: ANN401 - a SparkSession
    """Ask the Masters of a session's cluster for their settings, and use the first settings that are returned.

    The function raises nothing, and takes at most `timeout` seconds.
    """
    context = spark.sparkContext
    masters = addresses(str(context.master))
    answers: queue.SimpleQueue[Master] = queue.SimpleQueue()

    def ask(host: str, port: int) -> None:
        answers.put(_ask(context, host, port, timeout))

    # Threads enforce the deadline: a DNS lookup has no time-out, nor has a response that arrives byte by byte.
    for address in masters:
        threading.Thread(target=ask, args=address, name="reactive-master", daemon=True).start()
    found, deadline = Master(), time.monotonic() + timeout
    for _ in masters:
        try:
            found = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return Master(problem=found.problem or f"no answer within {timeout:g} s")
        if found.settings is not None:
            break
    return found


def _ask(context: Any, host: str, port: int, timeout: float) -> Master:  # noqa: ANN401 - a SparkContext
    try:
        return _read(f"http://{host}:{_web_port(context, host, port, timeout)}/environment/", timeout)
    except Exception as error:
        log.debug("the settings of the Master cannot be read", exc_info=True)
        return Master(problem=f"{host}:{port}: {type(error).__name__}: {_line(error)}")


def _web_port(context: Any, host: str, port: int, timeout: float) -> int:  # noqa: ANN401 - a SparkContext
    """The port of a Master's web UI; its host is that of the RPC endpoint. Raises what py4j raises."""
    jvm, scheduler = context._jvm, context._jsc.sc().schedulerBackend()  # noqa: SLF001 - there is no public way
    rpc, duration = jvm.org.apache.spark.rpc, jvm.scala.concurrent.duration
    master = scheduler.rpcEnv().setupEndpointRef(rpc.RpcAddress(host, port), "Master")
    limit = duration.FiniteDuration(int(timeout * 1000), jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
    messages = jvm.org.apache.spark.deploy.master
    question = getattr(getattr(messages, "MasterMessages$BoundPortsRequest$"), "MODULE$")
    answer = master.askSync(question, rpc.RpcTimeout(limit, "the preflight check"), jvm.scala.reflect.ClassTag.Any())
    return int(answer.webUIPort())


def _read(url: str, timeout: float) -> Master:
    """Read the settings from a page of the web UI. Raises what urllib raises."""
    # Ignore a proxy that the environment sets: it is for addresses outside the cluster.
    with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
        settings = read_settings(answer.read(MAX_BYTES).decode("utf-8", "replace"))
    return Master(settings) if settings is not None else Master(problem=f"{url} shows no Spark properties")


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
