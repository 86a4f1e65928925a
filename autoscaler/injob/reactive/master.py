"""The settings of a standalone cluster's Master, which no API of Spark gives to an application.

The Master shows them in its web UI. An application does not know the port of that, so it asks the Master for its ports
by Spark's own protocol.
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
"""Seconds after which a job starts without having read them."""

MAX_BYTES = 4 << 20
"""A page that is longer is not the Master's."""

log = logging.getLogger("autoscaler.injob.reactive")


@dataclass(frozen=True, slots=True)
class Master:
    """What is known of the settings of a Master.

    Attributes:
        settings: a missing one has Spark's default; None: not known.
        problem: why they are not known, where they could be; empty: there is no such Master, or it was not asked.
    """

    settings: Mapping[str, str] | None = None
    problem: str = ""


def addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each Master in a URL such as `spark://one:7077,two:7077`; none for other clusters."""
    if not master.startswith("spark://"):
        return []
    pairs = (one.rpartition(":") for one in master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in pairs if host and port.isdecimal()]


def read_master(spark: Any, timeout: float = TIMEOUT) -> Master:  # noqa: ANN401 - a SparkSession
    """Ask the Masters of a session's cluster for their settings; the first that has some counts.

    Nothing is raised, and it takes no longer than `timeout` seconds.
    """
    context = spark.sparkContext
    masters = addresses(str(context.master))
    answers: queue.SimpleQueue[Master] = queue.SimpleQueue()

    def ask(host: str, port: int) -> None:
        answers.put(_ask(context, host, port, timeout))

    # Neither the lookup of a name nor an answer that comes in drops has a time-out.
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
    """The port of a Master's web UI; the host is the same. Raises what py4j raises."""
    jvm, scheduler = context._jvm, context._jsc.sc().schedulerBackend()  # noqa: SLF001 - there is no public way
    rpc, duration = jvm.org.apache.spark.rpc, jvm.scala.concurrent.duration
    master = scheduler.rpcEnv().setupEndpointRef(rpc.RpcAddress(host, port), "Master")
    limit = duration.FiniteDuration(int(timeout * 1000), jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
    messages = jvm.org.apache.spark.deploy.master
    question = getattr(getattr(messages, "MasterMessages$BoundPortsRequest$"), "MODULE$")
    answer = master.askSync(question, rpc.RpcTimeout(limit, "the preflight check"), jvm.scala.reflect.ClassTag.Any())
    return int(answer.webUIPort())


def _read(url: str, timeout: float) -> Master:
    """What a page says. Raises what urllib raises."""
    # A proxy of the environment is for the world outside of the cluster.
    with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
        settings = read_settings(answer.read(MAX_BYTES).decode("utf-8", "replace"))
    return Master(settings) if settings is not None else Master(problem=f"{url} shows no Spark properties")


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
