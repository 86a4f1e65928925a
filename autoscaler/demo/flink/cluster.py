"""A Flink cluster in Reactive Mode on this machine, with a job whose load and lag are known exactly.

The job is `java/VirtualLogJob.java`, compiled on demand. Its main program runs in the JobManager's process, its tasks
run on all TaskManagers. The target `local` manages the TaskManagers.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoscaler.demo.processes import DemoError
from autoscaler.demo.sink import Arrival
from autoscaler.targets.local.workers import flink_command, flink_environment, flink_sizes

_SOURCE = Path(__file__).parent / "java" / "VirtualLogJob.java"
_COMPILE_TIMEOUT = 120  # seconds; the compilation takes two seconds
_ASK_EVERY = 0.2  # seconds between two polls of the savepoint's status
_RELEASE = "17"  # the target version of Java, also if the compiler is newer

_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
# Flink's file sink registers one of its metrics again at each checkpoint, which logs a warning each time.
logger.metrics.name = org.apache.flink.metrics.MetricGroup
logger.metrics.level = ERROR
"""

_SETTINGS: Mapping[str, str] = {
    "jobmanager.rpc.address": "127.0.0.1",
    "jobmanager.bind-host": "127.0.0.1",
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "rest.flamegraph.enabled": "false",
    # Use new slots at once: the defaults of 60 s and 30 s are too long for a demo.
    "scheduler-mode": "reactive",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "2s",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "5s",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "1s",
    # Only missing heartbeats reveal a killed TaskManager.
    "heartbeat.interval": "2s",
    "heartbeat.timeout": "10s",
    "heartbeat.rpc-failure-threshold": "-1",
    "execution.checkpointing.interval": "1s",
    "execution.checkpointing.storage": "filesystem",
    "state.backend.type": "hashmap",
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1s",
    "restart-strategy.exponential-delay.max-backoff": "5s",
    # Maximum age of metrics in the REST API; the default is 10 s.
    "metrics.fetcher.update-interval": "1000",
    # Keep the processes small: the job has little state and sends hardly any data over the network.
    "jobmanager.memory.process.size": "640m",
    "jobmanager.memory.jvm-metaspace.size": "128m",
    "jobmanager.memory.jvm-overhead.min": "64m",
    "jobmanager.memory.jvm-overhead.max": "64m",
    "taskmanager.memory.jvm-metaspace.size": "128m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
    "taskmanager.memory.managed.size": "0m",
    "taskmanager.memory.framework.off-heap.size": "64m",
    "taskmanager.memory.network.min": "32m",
    "taskmanager.memory.network.max": "32m",
}

TASK_MANAGER_MEMORY = "512m"
"""Memory of a TaskManager's process that fits these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Arguments of the job.

    Attributes:
        name: the job's name.
        clock: file with the time when the load began.
        sink: directory for the job's output files.
        partitions: partitions of the log; further slots would have nothing to read.
        keys: the number of keys for which the job counts records.
        max_parallelism: Flink's maximum parallelism, the upper limit of useful slots.
        cost: the time to process one record, in milliseconds.
    """

    name: str
    clock: Path
    sink: Path
    partitions: int = 6
    keys: int = 120
    max_parallelism: int = 120
    cost: int = 45

    def arguments(self) -> list[str]:
        """The job's command-line arguments."""
        values = asdict(self) | {"sink": self.sink.as_uri()}
        return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def compile_job(jdk: Path, home: Path, directory: Path) -> Path:
    """Compile the job for a Flink installation, and return its JAR file. The directory is created if it is missing.

    Raises:
        DemoError: the job cannot be compiled; the message is the compiler's.
    """
    classes = directory / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    try:
        answer = subprocess.run(  # noqa: S603 - the compiler of the given JDK
            [
                jdk / "bin" / "javac",
                *("--release", _RELEASE, "-d", classes, "-cp", str(home / "lib" / "*"), _SOURCE),
            ],
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DemoError(f"the job cannot be compiled: {error}") from error
    if answer.returncode != 0:
        raise DemoError(f"the job cannot be compiled:\n{answer.stderr.strip()}")
    jar = directory / "job.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted(classes.glob("*.class")):
            archive.write(path, path.name)
    return jar


def write_conf(conf: Path, settings: Mapping[str, str]) -> None:
    """Write Flink's configuration directory: the demo's own settings, which `settings` extend and override."""
    conf.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}: {json.dumps(value)}\n" for name, value in {**_SETTINGS, **settings}.items())
    (conf / "config.yaml").write_text("".join(lines))
    (conf / "log4j-console.properties").write_text(_LOGGING)


def job_manager(
    home: Path, java: Path, conf: Path, jar: Path, job: Job, options: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment of a JobManager that runs the job.

    The TaskManagers get the job's JAR file from the JobManager. `java` is a JAVA_HOME, `options` are further options of
    the JobManager's JVM.

    Raises:
        RefusedError: Flink does not accept the configuration.
    """
    sizes = flink_sizes(home, java, conf, "GET_JM_RESOURCE_PARAMS", {})
    main = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
    command = flink_command(home, java, conf, (*sizes.jvm, *options), main)
    arguments = ["--jars", jar.as_uri(), "--job-classname", "VirtualLogJob", *sizes.settings, *job.arguments()]
    return [*command, *arguments], flink_environment(home, conf)


def stop_job(rest: str, job: str, savepoint: Path, seconds: float) -> None:
    """Stop the job with a savepoint, so that all records it has read are written and committed.

    The JobManager ends together with the job. `rest` is the address of the JobManager's REST API.

    Raises:
        DemoError: the job was not stopped, or not in time; the message has Flink's error.
    """
    how = json.dumps({"drain": True, "targetDirectory": savepoint.as_uri()}).encode()
    stop = urllib.request.Request(  # noqa: S310 - a loopback address of our own
        f"{rest}/jobs/{job}/stop", data=how, headers={"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + seconds
    try:
        trigger = _answer(stop)["request-id"]
        # The JobManager does not end before a client has read the final status.
        while (status := _answer(f"{rest}/jobs/{job}/savepoints/{trigger}"))["status"]["id"] != "COMPLETED":
            if time.monotonic() > deadline:
                raise DemoError(f"the job was not stopped within {seconds:g} s")
            time.sleep(_ASK_EVERY)
    except (OSError, ValueError, KeyError) as error:
        raise DemoError(f"the job cannot be stopped: {error!r}") from error
    if "failure-cause" in status["operation"]:
        raise DemoError(f"the job cannot be stopped: {status['operation']['failure-cause']['stack-trace']}")


def _answer(request: str | urllib.request.Request) -> Any:  # noqa: ANN401 - JSON of any shape
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - a loopback address of our own
        return json.load(answer)


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The output of the job.

    Attributes:
        arrivals: the records, in the order in which they were processed.
        miscounted: keys whose records were not counted 1, 2, 3, ...: state was lost or used twice.
    """

    arrivals: list[Arrival]
    miscounted: tuple[int, ...]


def read_files(sink: Path) -> JobOutput:
    """Read the job's committed output. The names of uncommitted files begin with a dot.

    Raises:
        ValueError: a line has the wrong format.
        OSError: a file cannot be read.
    """
    arrivals: list[Arrival] = []
    counts: dict[int, list[int]] = defaultdict(list)
    for path in sink.iterdir() if sink.is_dir() else ():
        if path.name.startswith("."):
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                partition, offset, worker, at, key, count = line.split(",")
                arrivals.append(Arrival(int(partition), int(offset), worker, float(at)))
                counts[int(key)].append(int(count))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not a line of the job: {line!r}") from error
    arrivals.sort(key=lambda arrival: arrival.at)
    miscounted = [key for key, found in counts.items() if sorted(found) != list(range(1, len(found) + 1))]
    return JobOutput(arrivals, tuple(sorted(miscounted)))
