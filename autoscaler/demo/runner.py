"""The demo from beginning to end."""

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
from autoscaler.demo.config import CLUSTER, api, configuration
from autoscaler.demo.environment import PARTITIONS, Scene, answered, get, require
from autoscaler.demo.flink.environment import FlinkScene
from autoscaler.demo.live_view import Moment, Show, show
from autoscaler.demo.load import Load, read_load, split, stretch, surge
from autoscaler.demo.processes import DemoError, Stage, free_port
from autoscaler.demo.result import Rescale, Run, Sample, summary
from autoscaler.demo.simulation import beside, sentence
from autoscaler.demo.sink import account
from autoscaler.demo.spark.clock import start_clock
from autoscaler.demo.spark.environment import BATCH, SparkScene
from autoscaler.engines.spark import Spark
from autoscaler.ports import AutoscalerError
from autoscaler.targets.local.pool import request_size

SCENES: dict[str, Callable[[Stage, Path], Scene]] = {"spark": SparkScene, "flink": FlinkScene}
START_TIMEOUT = 240.0
END_TIMEOUT = 180.0
LOOK_EVERY = 1.0
STALE = 3.0  # seconds: what a job says of its lag may be a little older
PATIENCE = 60.0  # seconds in which what is asked only at the end is answered, also on a busy machine

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def play(options: argparse.Namespace) -> int:
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
            result = _Demo(console, load, output, options).run()
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running", markup=False)
        return INTERRUPTED
    except AutoscalerError as error:
        console.print(f"autoscaler demo failed: {error}", markup=False, soft_wrap=True)
        return FAILED
    if options.json:
        print(json.dumps(result, indent=2))  # noqa: T201 - what --json asks for
    return OK if result["ok"] else FAILED


def _load(options: argparse.Namespace) -> Load:
    if options.load is not None:
        return read_load(options.load, options.duration)
    load = surge()
    return load if options.duration is None else stretch(load, options.duration)


def _output(asked: Path | None) -> Path:
    output = asked if asked is not None else Path("demo-output") / time.strftime("%Y-%m-%d-%H%M%S")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not an empty directory; name another")
    output.mkdir(parents=True, exist_ok=True)
    return output.resolve()


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the demo like Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing interrupts the cleaning up, which takes seconds; a second Ctrl-C would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Seen:
    """What has been seen so far."""

    samples: list[Sample] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    desired: int | None = None
    rescaling: bool = False


class _Demo:
    def __init__(self, console: Console, load: Load, output: Path, options: argparse.Namespace) -> None:
        self._console = console
        self._load = load
        self._output = output
        self._options = options
        self._work = output / "work"
        if not options.no_plot:
            require(("matplotlib",), "plot")
        self._stage = Stage(output / "logs", self._work / "workers")
        self._scene = SCENES[options.engine](self._stage, self._work)
        self._listen = free_port()
        self._start = 0.0
        self._seen = _Seen()

    def run(self) -> dict[str, Any]:
        """Play it all; the result is also written to the output directory."""
        try:
            played = self._play()
        finally:
            with _undisturbed():
                self._say("stopping everything that is still running ...")
                self._stage.clear()
        result = {**summary(played), "simulated": self._simulated(played)}
        (self._output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        if not self._options.no_plot:
            self._draw(played)
        self._sum_up(played, result)
        if not self._options.keep:
            shutil.rmtree(self._work, ignore_errors=True)
            if result["ok"]:
                shutil.rmtree(self._stage.logs, ignore_errors=True)
        return result

    # ---- the acts

    def _play(self) -> Run:
        self._prepare()
        with show(self._console) as shown:
            self._wait_until(self._scene.running, START_TIMEOUT, shown, "starting", "the job to run on a worker")
            self._wait_until(self._daemon_sees, 60.0, shown, "starting", "the daemon to see the job")
            # A whole second ahead: nobody reads the clock's file later than the load begins.
            self._start = time.time() + 1.0
            start_clock(self._work / "clock.json", self._load, self._start)
            while self._now() < self._load.duration:
                self._look(shown, self._phase())
            drained = self._ending(shown)
        rescales = self._rescales()
        facts = answered(self._scene, PATIENCE)
        workers = len(list((self._stage.pool / "workers").glob("*.json")))
        # In this order: a daemon that saw the job go would have something to say about it.
        self._stage.stop("daemon", 20.0)
        ending = self._scene.finish()
        arrivals = ending.arrivals
        heads = split(self._load.offered(self._load.duration), PARTITIONS)
        return Run(
            load=self._load,
            start=self._start,
            arrivals=arrivals,
            account=account(heads, ((arrival.partition, arrival.offset) for arrival in arrivals)),
            samples=self._seen.samples,
            rescales=rescales,
            drained=drained,
            workers=workers,
            facts=facts,
            trouble=ending.problems,
            commits=ending.commits,
        )

    def _prepare(self) -> None:
        """Write the configuration and start everything."""
        self._work.mkdir(exist_ok=True)
        self._say(f"Java: {self._scene.java}")
        file = self._output / "autoscaler.yaml"
        state = self._work / "autoscaler"
        file.write_text(configuration(self._scene.parts, PARTITIONS, self._listen, state, self._load.duration))
        self._say(f"configuration of the autoscaler: {file}")
        self._say(f"logs: {self._stage.logs}")
        # One worker is there before the load begins; from then on the daemon decides.
        request_size(self._stage.pool, 1)
        self._scene.start_cluster()
        self._wait_until(self._scene.up, 60.0, None, "", "the cluster to answer")
        daemon = [sys.executable, "-m", "autoscaler", "run", str(file)]
        self._stage.start("daemon", daemon, self._scene.environment)
        self._scene.start_job()

    def _ending(self, shown: Show) -> bool:
        """Let the job drain and the daemon finish what it does; whether all was read."""
        deadline = time.monotonic() + END_TIMEOUT
        drained = False
        while time.monotonic() < deadline:
            drained = self._now() > self._load.duration + STALE and self._lag() == 0
            sizes = [sample.desired for sample in self._seen.samples if sample.desired is not None]
            calm = not self._seen.rescaling and sizes and sizes[-1] < max(sizes)
            if drained and (calm or max(sizes, default=1) == 1):
                break
            self._look(shown, "nothing is offered any more; waiting for the scale-down" if drained else "draining")
        return drained

    def _phase(self) -> str:
        rise, fall, now = self._load.rise, self._load.fall, self._now()
        if rise is None or now < rise:
            return "calm"
        return "surge" if fall is None or now < fall else "calm again"

    # ---- looking

    def _now(self) -> float:
        return time.time() - self._start if self._start else 0.0

    def _look(self, shown: Show | None, phase: str) -> None:
        """Look once at everything, show it, and wait for the next time."""
        began = time.monotonic()
        self._stage.check()
        cluster = get(api(self._listen)) or {}
        self._note(cluster)
        if shown is not None:
            now = self._now()
            decision = cluster.get("decision") or {}
            shown.tell(
                Moment(
                    at=now,
                    of=self._load.duration,
                    phase=phase,
                    rate=self._load.rate(now) if self._start else 0.0,
                    lag=self._lag() if self._start else 0,
                    desired=cluster.get("current"),
                    ready=cluster.get("ready"),
                    thought=_thought(cluster, decision),
                    events=tuple(self._seen.events),
                )
            )
        time.sleep(max(0.1, LOOK_EVERY - (time.monotonic() - began)))

    def _note(self, cluster: dict[str, Any]) -> None:
        desired, ready = cluster.get("current"), cluster.get("ready")
        rescale = cluster.get("rescale")
        self._seen.rescaling = rescale is not None
        if not self._start:
            return
        engine = (cluster.get("observation") or {}).get("engine") or {}
        self._seen.samples.append(Sample(self._now(), desired, ready, engine.get("parallelism")))
        # One that began before the load did brought the first worker up.
        ours = rescale is not None and datetime.fromisoformat(rescale["at"]).timestamp() >= self._start
        if rescale is not None and ours and rescale["to"] != self._seen.desired:
            self._seen.events.append(f"{self._now():.0f} s: {rescale['before']} -> {rescale['to']} workers")
            self._seen.desired = rescale["to"]

    def _lag(self) -> int | None:
        return self._scene.lag(self._load.offered(self._now()))

    def _daemon_sees(self) -> bool:
        """Whether the daemon sees a worker up and the job."""
        cluster = get(api(self._listen)) or {}
        observation = cluster.get("observation") or {}
        engine = observation.get("engine") or {}
        return cluster.get("ready") == 1 and engine.get("job") == "running"

    def _rescales(self) -> list[Rescale]:
        """What the daemon asked for since the load began, by its own log."""
        answer = get(api(self._listen) + "/decisions?limit=2000", seconds=PATIENCE)
        if answer is None:
            raise DemoError(self._stage.told("daemon", "the daemon does not tell its decisions"))
        found: list[Rescale] = []
        for told in reversed(answer["decisions"]):
            decision = told["decision"]
            at = datetime.fromisoformat(decision["at"]).timestamp() - self._start
            if decision["desired"] != decision["current"] and at >= 0:
                found.append(Rescale(at, decision["current"], decision["desired"], decision["reason"]))
        return found

    def _wait_until(self, done: Callable[[], bool], seconds: float, shown: Show | None, phase: str, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise DemoError(f"waited {seconds:g} s for {what}, in vain; see the logs in {self._stage.logs}")
            self._look(shown, phase)

    # ---- the end

    def _simulated(self, played: Run) -> Mapping[str, Any] | None:
        """What a simulation says of it; None for Flink, and where too little was seen of the workers."""
        cluster = config.load(self._output / "autoscaler.yaml", os.environ).clusters[CLUSTER]
        if not isinstance(cluster.engine, Spark):
            return None
        return beside(played, cluster.spec, BATCH, cluster.engine.window.total_seconds())

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _draw(self, played: Run) -> None:
        from autoscaler.demo.plot import draw  # noqa: PLC0415 - it needs matplotlib

        draw(played, self._output / "plot.png")

    def _sum_up(self, played: Run, result: dict[str, Any]) -> None:
        def seconds(name: str) -> str:
            return "-" if result[name] is None else f"{result[name]:.0f} s"

        say = self._say
        say("")
        for each in result["rescales"]:
            say(f"  at {each['at']:.0f} s: {each['before']} -> {each['to']} workers")
        say(f"  first scale-up requested {seconds('first_scale_up_after_s')} after the load rose")
        say(
            f"  lag at most {result['peak_lag']} records, back under 5 s of load "
            f"{seconds('lag_back_after_s')} after the last new worker's first task"
        )
        if result["simulated"] is not None:
            say(f"  simulated with such workers: {sentence(result)}")
        say(
            f"  {result['offered']} records offered, {result['processed']} processed, {result['lost']} lost, "
            f"{result['duplicated']} duplicated; "
            + ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in played.facts.items())
        )
        say(f"  result: {self._output / 'result.json'}")
        if not self._options.no_plot:
            say(f"  picture: {self._output / 'plot.png'}")
        if result["ok"]:
            say("success: it scaled up, drained, scaled down, and each record arrived exactly once")
        for reason in result["reasons"]:
            say(f"failed: {reason}")
        if result["reasons"]:
            say(f"the logs are in {self._stage.logs}")


def _thought(cluster: dict[str, Any], decision: dict[str, Any]) -> str:
    """The daemon's last decision in a sentence."""
    if not decision:
        return cluster.get("problem") or "(the daemon has not decided anything yet)"
    rescale = cluster.get("rescale")
    told = [each["detail"] for each in decision["recommendations"] if each["detail"]]
    parts = [told[0] if told else decision["reason"]]
    if rescale is not None:
        parts.insert(0, f"{rescale['before']} -> {rescale['to']} under way ({rescale['phase']})")
    elif missing := cluster.get("missing"):
        parts.insert(0, f"cannot read {', '.join(missing)}")
    return "; ".join(parts)
