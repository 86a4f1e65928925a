"""Run the demo from start to end."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from autoscaler import config
from autoscaler.core.model import ClusterState
from autoscaler.daemon.run_page import RecordedRun, open_page
from autoscaler.daemon.state_store import read_state
from autoscaler.demo.config import CLUSTER, api, configuration
from autoscaler.demo.environment import FINAL_TIMEOUT, PARTITIONS, Environment, describe, get, require, rescales
from autoscaler.demo.flink.environment import FlinkEnvironment
from autoscaler.demo.live_view import LiveView, Status, live_view
from autoscaler.demo.load import Load, read_load, split, start_clock, stretch, surge
from autoscaler.demo.processes import DemoError, Processes, free_port, uninterrupted
from autoscaler.demo.result import Rescale, Run, Sample, summary
from autoscaler.demo.simulation import describe_simulation, simulate_beside
from autoscaler.demo.sink import account
from autoscaler.demo.spark.environment import SparkEnvironment
from autoscaler.demo.spark.job import BATCH
from autoscaler.demo.spark_batch.runner import BatchRunner
from autoscaler.engines.spark import Spark
from autoscaler.ports import AutoscalerError
from autoscaler.targets.local.pool import request_size
from autoscaler.trace import format as trace

ENVIRONMENTS: dict[str, Callable[[Processes, Path], Environment]] = {
    "spark": SparkEnvironment,
    "flink": FlinkEnvironment,
}
BATCH_ENGINE = "spark-batch"
START_TIMEOUT = 240.0
END_TIMEOUT = 180.0
POLL_INTERVAL = 1.0
STALE = 3.0  # the maximum age in seconds of a reported lag

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def run(options: argparse.Namespace) -> int:
    """Run the demo with these options and return its exit code."""
    console = Console(stderr=bool(options.json), highlight=False)
    try:
        load = _load(options)
        output = _output(options.output)
    except (ValueError, OSError) as error:
        console.print(f"autoscaler demo: {error}", markup=False, soft_wrap=True)
        return USAGE
    try:
        with _interruptible():
            if options.engine == BATCH_ENGINE:
                result = BatchRunner(console, output, options).run()
            else:
                result = Runner(console, load, output, options).run()
    except KeyboardInterrupt:
        console.print("interrupted; all processes were stopped", markup=False)
        return INTERRUPTED
    except AutoscalerError as error:
        console.print(f"autoscaler demo failed: {error}", markup=False, soft_wrap=True)
        return FAILED
    if options.json:
        print(json.dumps(result, indent=2))  # noqa: T201 - the output of --json
    return OK if result["ok"] else FAILED


def _load(options: argparse.Namespace) -> Load:
    given = [name for name in ("load", "duration", "open") if getattr(options, name)]
    if options.engine == BATCH_ENGINE and given:
        raise ValueError(f"--{given[0]} is for streaming jobs: leave it out with --engine {BATCH_ENGINE}")
    if options.load is not None:
        return read_load(options.load, options.duration)
    load = surge()
    return load if options.duration is None else stretch(load, options.duration)


def _output(asked: Path | None) -> Path:
    output = asked if asked is not None else Path("demo-output") / time.strftime("%Y-%m-%d-%H%M%S")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not an empty directory: choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    return output.resolve()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM end the demo as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Observed:
    """The observations so far."""

    samples: list[Sample] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    desired: int | None = None
    rescaling: bool = False


class Runner:
    """One run of the demo, with its processes, environment and live view."""

    def __init__(self, console: Console, load: Load, output: Path, options: argparse.Namespace) -> None:
        self._console = console
        self._load = load
        self._output = output
        self._options = options
        self._work = output / "work"
        self._processes = Processes(output / "logs", self._work / "workers")
        self._environment = ENVIRONMENTS[options.engine](self._processes, self._work)
        if not options.no_plot:  # after the environment: the message about its extra comes first
            require(("matplotlib",), "plot")
        self._listen = free_port()
        self._start = 0.0
        self._observed = _Observed()

    def run(self) -> dict[str, Any]:
        """Run the demo. Returns the result, which is also written to the output directory."""
        try:
            run = self._execute()
        finally:
            with uninterrupted():
                self._print("stopping all processes ...")
                self._processes.clear()
        result = {**summary(run), "simulated": self._simulated(run)}
        (self._output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        if not self._options.no_plot:
            self._draw(run)
        self._print_summary(run, result)
        if self._options.open:
            self._print(f"  page: {self._open_page()}")
        if not self._options.keep:
            shutil.rmtree(self._work, ignore_errors=True)
            if result["ok"]:
                shutil.rmtree(self._processes.logs, ignore_errors=True)
        return result

    def _execute(self) -> Run:
        self._prepare()
        with live_view(self._console) as shown:
            self._wait_until(self._environment.running, START_TIMEOUT, shown, "starting", "the job to run on a worker")
            self._wait_until(self._daemon_sees, 60.0, shown, "starting", "the daemon to see the job")
            # Start the load in one second, so that every process reads the clock's file before.
            self._start = time.time() + 1.0
            start_clock(self._work / "clock.json", self._load, self._start)
            while self._now() < self._load.duration:
                self._poll(shown, self._phase())
            drained = self._ending(shown)
        rescales = self._rescales()
        facts = self._environment.wait_for_facts(FINAL_TIMEOUT)
        workers = len(list((self._processes.pool / "workers").glob("*.json")))
        # Stop the daemon first: it would react to the end of the job.
        self._processes.stop("daemon", 20.0)
        ending = self._environment.finish()
        arrivals = ending.arrivals
        heads = split(self._load.offered(self._load.duration), PARTITIONS)
        return Run(
            load=self._load,
            start=self._start,
            arrivals=arrivals,
            account=account(heads, ((arrival.partition, arrival.offset) for arrival in arrivals)),
            samples=self._observed.samples,
            rescales=rescales,
            drained=drained,
            workers=workers,
            facts=facts,
            trouble=ending.problems,
            commits=ending.commits,
            timeline=ending.timeline,
        )

    def _prepare(self) -> None:
        """Write the configuration, and start the cluster, the daemon and the job."""
        self._work.mkdir(exist_ok=True)
        self._print(f"live page, once the daemon runs: http://127.0.0.1:{self._listen}/")
        self._print(f"Java: {self._environment.java}")
        file = self._output / "autoscaler.yaml"
        state = self._work / "autoscaler"
        file.write_text(configuration(self._environment.parts, PARTITIONS, self._listen, state, self._load.duration))
        self._print(f"configuration: {file}")
        self._print(f"logs: {self._processes.logs}")
        # Start with one worker. After that the daemon decides.
        request_size(self._processes.pool, 1)
        self._environment.start_cluster()
        self._wait_until(self._environment.up, 60.0, None, "", "the cluster to respond")
        daemon = [sys.executable, "-m", "autoscaler", "run", str(file)]
        self._processes.start("daemon", daemon, self._environment.variables)
        self._environment.start_job()

    def _ending(self, shown: LiveView) -> bool:
        """Wait until the job has drained and the last rescale is over. Returns whether it has drained."""
        deadline = time.monotonic() + END_TIMEOUT
        drained = False
        while time.monotonic() < deadline:
            drained = self._now() > self._load.duration + STALE and self._lag() == 0
            sizes = [sample.desired for sample in self._observed.samples if sample.desired is not None]
            scaled_down = not self._observed.rescaling and sizes and sizes[-1] < max(sizes)
            if drained and (scaled_down or max(sizes, default=1) == 1):
                break
            self._poll(shown, "the load is over; waiting for the scale-down" if drained else "draining")
        return drained

    def _phase(self) -> str:
        rise, fall, now = self._load.rise, self._load.fall, self._now()
        if rise is None or now < rise:
            return "low load"
        return "high load" if fall is None or now < fall else "low load again"

    def _now(self) -> float:
        return time.time() - self._start if self._start else 0.0

    def _poll(self, shown: LiveView | None, phase: str) -> None:
        """Check the processes, read and show the daemon's state, and sleep until the next poll."""
        began = time.monotonic()
        self._processes.check()
        cluster = get(api(self._listen)) or {}
        self._note(cluster)
        if shown is not None:
            now = self._now()
            decision = cluster.get("decision") or {}
            shown.update(
                Status(
                    at=now,
                    duration=self._load.duration,
                    phase=phase,
                    rate=self._load.rate(now) if self._start else 0.0,
                    lag=self._lag() if self._start else 0,
                    desired=cluster.get("current"),
                    ready=cluster.get("ready"),
                    # Before the load nothing is up yet, so the daemon only reports what it cannot reach.
                    decision=_describe_decision(cluster, decision) if self._start else "no load yet",
                    events=tuple(self._observed.events),
                )
            )
        time.sleep(max(0.1, POLL_INTERVAL - (time.monotonic() - began)))

    def _note(self, cluster: dict[str, Any]) -> None:
        desired, ready = cluster.get("current"), cluster.get("ready")
        rescale = cluster.get("rescale")
        self._observed.rescaling = rescale is not None
        if not self._start:
            return
        engine = (cluster.get("observation") or {}).get("engine") or {}
        self._observed.samples.append(Sample(self._now(), desired, ready, engine.get("parallelism")))
        # Ignore the rescale before the load, which started the first worker.
        ours = rescale is not None and datetime.fromisoformat(rescale["at"]).timestamp() >= self._start
        if rescale is not None and ours and rescale["to"] != self._observed.desired:
            self._observed.events.append(f"{self._now():.0f} s: {rescale['before']} -> {rescale['to']} workers")
            self._observed.desired = rescale["to"]

    def _lag(self) -> int | None:
        return self._environment.lag(self._load.offered(self._now()))

    def _daemon_sees(self) -> bool:
        """Whether the daemon sees one ready worker and the running job."""
        cluster = get(api(self._listen)) or {}
        observation = cluster.get("observation") or {}
        engine = observation.get("engine") or {}
        return cluster.get("ready") == 1 and engine.get("job") == "running"

    def _rescales(self) -> list[Rescale]:
        """The rescales that the daemon has requested since the load began."""
        found: list[Rescale] = []
        for decision in rescales(self._processes, self._listen):
            at = datetime.fromisoformat(decision["at"]).timestamp() - self._start
            if at >= 0:
                found.append(Rescale(at, decision["current"], decision["desired"], decision["reason"]))
        return found

    def _wait_until(
        self, done: Callable[[], bool], seconds: float, shown: LiveView | None, phase: str, what: str
    ) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise DemoError(f"{what} took longer than {seconds:g} s; see the logs in {self._processes.logs}")
            self._poll(shown, phase)

    def _simulated(self, run: Run) -> Mapping[str, Any] | None:
        """Simulate the same run; None for Flink, or if the workers were not observed well enough."""
        cluster = config.load(self._output / "autoscaler.yaml", os.environ).clusters[CLUSTER]
        if not isinstance(cluster.engine, Spark):
            return None
        return simulate_beside(run, cluster.spec, BATCH, cluster.engine.window.total_seconds())

    def _open_page(self) -> Path:
        cluster = config.load(self._output / "autoscaler.yaml", os.environ).clusters[CLUSTER]
        directory = self._work / "autoscaler"
        records = list(trace.read(directory / "history"))
        state = read_state(directory, CLUSTER) or ClusterState()
        return open_page([RecordedRun(cluster, records, state)], self._output / "page.html")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _draw(self, run: Run) -> None:
        from autoscaler.demo.plot import draw  # noqa: PLC0415 - it needs matplotlib

        draw(run, self._output / "plot.png")

    def _print_summary(self, run: Run, result: dict[str, Any]) -> None:
        def seconds(name: str) -> str:
            return "-" if result[name] is None else f"{result[name]:.0f} s"

        print_line = self._print
        print_line("")
        for line in describe_scaling(result):
            print_line(f"  {line}")
        print_line(f"  first scale-up requested {seconds('first_scale_up_after_s')} after the load rose")
        print_line(
            f"  lag at most {result['peak_lag']} records, back under 5 s of load "
            f"{seconds('lag_back_after_s')} after the last new worker's first task"
        )
        if result["simulated"] is not None:
            print_line(f"  simulation of this run: {describe_simulation(result)}")
        print_line(
            f"  {result['offered']} records offered, {result['processed']} processed, {result['lost']} lost, "
            f"{result['duplicated']} duplicated; "
            + ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in run.facts.items())
        )
        print_line(f"  result: {self._output / 'result.json'}")
        if not self._options.no_plot:
            print_line(f"  picture: {self._output / 'plot.png'}")
        if result["ok"]:
            print_line("success: it scaled up, drained the backlog, scaled down, and each record arrived exactly once")
            print_line("")
            for text in _next_steps(self._output / "autoscaler.yaml"):
                print_line(text)
        for reason in result["reasons"]:
            print_line(f"failed: {reason}")
        if result["reasons"]:
            print_line(f"the logs are in {self._processes.logs}")


def _next_steps(file: Path) -> tuple[str, ...]:
    """The hints that are printed after the demo."""
    return (
        "what to do next:",
        f"  read the configuration of this run: {file}",
        "  write one for your own cluster: docs/configuration.md; autoscaler plugins lists the systems to connect",
        "  autoscaler check CONFIG --online      tests all connections, and changes nothing",
        "  autoscaler run CONFIG --dry-run       decides, and changes nothing; autoscaler explain CLUSTER says why",
    )


def describe_scaling(result: Mapping[str, Any]) -> list[str]:
    """List the rescales of the daemon, and the steps of the scheduler inside the job; seconds since the load began."""
    lines = ["the daemon:"]
    lines += [f"  at {each['at']:.0f} s: {each['before']} -> {each['to']} workers" for each in result["rescales"]]
    if result["job_scheduler"]:
        lines.append("the scheduler inside the job:")
    lines += [f"  at {each['at']:.0f} s: {each['state']}: {each['why']}" for each in result["job_scheduler"]]
    return lines


def _describe_decision(cluster: dict[str, Any], decision: dict[str, Any]) -> str:
    """The daemon's last decision in a sentence."""
    if not decision:
        return cluster.get("problem") or "(no decision yet)"
    rescale = cluster.get("rescale")
    missing = cluster.get("missing")
    why = f"no reading of {', '.join(missing)}" if missing else describe(decision)
    if rescale is None:
        return why
    return f"{rescale['before']} -> {rescale['to']} in progress ({rescale['phase']}); {why}"
