"""The kinds of workers of a local pool: how to start each, and how to check its registration with the cluster.

Without a configured directory, Spark and Flink come from installed packages: Spark from `pyspark`, Flink from
`apache-flink-libraries`. The latter puts Flink's libraries, but neither its scripts nor its configuration, into
`pyflink`.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from autoscaler.clients.flink import TaskManagers
from autoscaler.clients.http import JsonClient
from autoscaler.clients.spark import Master
from autoscaler.plugins import install_hint
from autoscaler.ports import RefusedError
from autoscaler.targets.local.pool import Place

_REASON_LINES = 3  # lines of a failed program's output that a message quotes
_SIZING_TIMEOUT = 60  # seconds; it usually takes one, but longer on a machine that is swapping
_RESULT = "BASH_JAVA_UTILS_EXEC_RESULT:"

# As in Flink's own config.yaml: Java 17 hides these packages, and Flink's serializers need them.
FLINK_MODULES = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.text", "java.time"),
        *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWorkers:
    """Workers of a Spark standalone cluster.

    Attributes:
        home: directory of the Spark installation.
        java: the JAVA_HOME to use.
        master: address of the Master.
        cores: cores of a worker.
        memory: memory that a worker offers its executors.
        timeout: `spark.worker.timeout`.
        page: client of the Master's page; None: a worker counts as registered when its process is alive.
    """

    home: Path
    java: Path
    master: str
    cores: int
    memory: str
    timeout: timedelta
    page: JsonClient | None
    # A decommissioned Worker accepts no new task, lets its executors finish theirs and end, and then waits.
    drain_signal: signal.Signals | None = signal.SIGPWR

    def launch(self, place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and the environment of a Worker.

        Each Worker has its own address, so that it is a separate host for the Master and the job.
        """
        options = (
            "-Dspark.decommission.enabled=true",
            f"-Dspark.worker.timeout={round(self.timeout.total_seconds())}",
        )
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            **os.environ,
            "SPARK_HOME": str(self.home),
            "JAVA_HOME": str(self.java),
            "SPARK_LOCAL_IP": place.address,
            "SPARK_LOCAL_DIRS": str(place.local),
            "SPARK_WORKER_OPTS": " ".join((os.environ.get("SPARK_WORKER_OPTS", ""), *options)).strip(),
        }
        command = [
            str(self.home / "bin" / "spark-class"),
            "org.apache.spark.deploy.worker.Worker",
            *("--host", place.address, "--webui-port", "0", "--work-dir", str(place.work)),
            *("--cores", str(self.cores), "--memory", self.memory, self.master),
        ]
        return command, environment

    async def registered(self, places: Collection[Place]) -> int:
        """The number of workers that the Master lists as ALIVE; without its page, all of them."""
        if self.page is None:
            return len(places)
        expected = "a Spark Master's JSON (list of `workers`)"
        master = await self.page.get("/json/", Master, fresh=0, expected=expected)
        alive = {worker.host for worker in master.workers if worker.state == "ALIVE"}
        return sum(place.address in alive for place in places)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkTaskManagers:
    """TaskManagers of a Flink standalone cluster.

    On SIGTERM a TaskManager disconnects from the JobManager, which releases its slots, so no drain is needed.

    Attributes:
        home: directory of the Flink installation.
        java: the JAVA_HOME to use.
        conf: the directory of `config.yaml`.
        sizes: memory of a TaskManager, as options of its JVM and settings.
        page: client of the JobManager; None: a TaskManager counts as registered when its process is alive.
    """

    home: Path
    java: Path
    conf: Path
    sizes: Sizes
    page: JsonClient | None
    drain_signal: signal.Signals | None = None

    def launch(self, place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and the environment of a TaskManager with its own address."""
        own = {
            "taskmanager.host": place.address,
            "taskmanager.bind-host": place.address,
            # The id is unique and not only the address, because Flink lists a killed TaskManager for a while.
            "taskmanager.resource-id": _name(place),
            "io.tmp.dirs": str(place.local),
        }
        arguments = [part for key, value in own.items() for part in ("-D", f"{key}={value}")]
        options = (*self.sizes.jvm, *_options("TM"), f"-Dlog.file={place.work / 'taskmanager.log'}")
        command = flink_command(
            self.home, self.java, self.conf, options, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        )
        return [*command, *self.sizes.settings, *arguments], flink_environment(self.home, self.conf)

    async def registered(self, places: Collection[Place]) -> int:
        """The number of TaskManagers that the JobManager lists; without its address, all of them."""
        if self.page is None:
            return len(places)
        expected = "Flink's JSON (list of `taskmanagers`)"
        manager = await self.page.get("/taskmanagers", TaskManagers, fresh=0, expected=expected)
        listed = {each.id for each in manager.taskmanagers}
        return sum(_name(place) in listed for place in places)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The memory sizes of a Flink process.

    Attributes:
        jvm: the sizes as JVM options.
        settings: the sizes as arguments of the process.
    """

    jvm: tuple[str, ...]
    settings: tuple[str, ...]


def flink_sizes(home: Path, java: Path, conf: Path, command: str, settings: Mapping[str, str]) -> Sizes:
    """Let Flink compute the memory sizes, as its scripts do. This runs a JVM for a second.

    `command` is `GET_TM_RESOURCE_PARAMS` for a TaskManager, `GET_JM_RESOURCE_PARAMS` for a JobManager; `settings`
    override the `config.yaml` in `conf`.

    Raises:
        RefusedError: Flink does not accept the settings; the message is Flink's.
    """
    jars = os.pathsep.join(map(str, (home / "bin" / "bash-java-utils.jar", *home.glob("lib/flink-dist*.jar"))))
    overrides = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    tool = ["-cp", jars, "org.apache.flink.runtime.util.bash.BashJavaUtils", command]
    try:
        answer = subprocess.run(  # noqa: S603 - running the named Flink is the purpose
            [java / "bin" / "java", *tool, "--configDir", conf, *overrides],
            capture_output=True,
            text=True,
            timeout=_SIZING_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"the Flink in {home} cannot compute its memory sizes: {error}") from error
    results = [line.removeprefix(_RESULT) for line in answer.stdout.splitlines() if line.startswith(_RESULT)]
    if answer.returncode != 0 or len(results) != 2:  # noqa: PLR2004 - the JVM's options and the settings
        why = [line for line in answer.stderr.splitlines() if "Exception" in line] or answer.stderr.splitlines()
        raise RefusedError(
            f"Flink does not accept the settings of {conf} with {', '.join(overrides[1::2]) or 'nothing else'}: "
            + " ".join(line.strip() for line in why[-_REASON_LINES:])
        )
    return Sizes(tuple(results[0].split()), tuple(results[1].split()))


def flink_command(home: Path, java: Path, conf: Path, options: Sequence[str], main: str) -> list[str]:
    """The command line of a Flink process, without its own arguments."""
    jars = sorted(home.glob("lib/*.jar"), key=lambda jar: (jar.name.startswith("flink-dist"), jar.name))
    log = conf / "log4j-console.properties"
    logging = [f"-Dlog4j.configurationFile={log.as_uri()}"] if log.is_file() else []
    return [
        str(java / "bin" / "java"),
        *options,
        *FLINK_MODULES,
        *logging,
        *("-cp", os.pathsep.join(map(str, jars))),
        *(main, "--configDir", str(conf)),
    ]


def flink_environment(home: Path, conf: Path) -> dict[str, str]:
    """The environment of a Flink process, with the variables that Flink's scripts export."""
    directories = {"FLINK_LIB_DIR": "lib", "FLINK_PLUGINS_DIR": "plugins", "FLINK_OPT_DIR": "opt"}
    return {
        **os.environ,
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(conf),
        **{name: str(home / directory) for name, directory in directories.items()},
    }


def spark_home(named: str = "") -> Path:
    """Return the Spark installation: the named one, or that of the package pyspark.

    Raises:
        RefusedError: there is none; the message says what to do.
    """
    if named:
        home = Path(named)
    else:
        try:
            import pyspark  # noqa: PLC0415 - it belongs to an extra
        except ImportError as error:
            raise RefusedError(
                "spark_home is not given and the package pyspark is not installed; set spark_home, or "
                f"{install_hint('spark')}"
            ) from error
        home = Path(pyspark.__file__).parent
    if not (home / "bin" / "spark-class").is_file():
        raise RefusedError(f"{home} is not a Spark installation: it has no bin/spark-class")
    return home


def flink_home(named: str = "") -> Path:
    """Return the Flink installation: the named one, or that of the package apache-flink-libraries.

    Raises:
        RefusedError: there is none; the message says what to do.
    """
    if named:
        home = Path(named).absolute()
    else:
        # The package has no __init__.py, so it cannot be imported.
        found = importlib.util.find_spec("pyflink")
        if found is None or not found.submodule_search_locations:
            raise RefusedError(
                "flink_home is not given and the package apache-flink-libraries is not installed; set flink_home, or "
                f"{install_hint('flink-test')}"
            )
        home = Path(next(iter(found.submodule_search_locations)))
    for part in ("lib/flink-dist*.jar", "bin/bash-java-utils.jar"):
        if not any(home.glob(part)):
            raise RefusedError(f"{home} is not a Flink installation: it has no {part}")
    return home


def _options(role: str) -> list[str]:
    """Java options from the environment variables that Flink's scripts use."""
    names = ("FLINK_ENV_JAVA_OPTS", f"FLINK_ENV_JAVA_OPTS_{role}")
    return shlex.split(" ".join(os.environ.get(name, "") for name in names))


def _name(place: Place) -> str:
    return f"{place.address}-{place.number}"
