"""Run the demo with a batch job: under the autoscaler, then with Spark's defaults on a cluster of fixed size."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autoscaler.demo.environment import describe, require
from autoscaler.demo.live_view import LiveView, live_view
from autoscaler.demo.spark_batch.cluster import BatchCluster, Moment, Variant, autoscaled, defaults
from autoscaler.demo.spark_batch.config import WORKERS
from autoscaler.demo.spark_batch.job import VOLUME
from autoscaler.demo.spark_batch.result import BatchRun, summary
from autoscaler.demo.spark_batch.tables import ORDERS, files, write_tables
from autoscaler.injob.batch import parse_size
from autoscaler.injob.batch_stages import BatchOptions, table
from autoscaler.schedulers.batch import BatchSettings

SCALE = 4.0
"""The scale of the tables: 40 000 orders."""


def batch_options(scale: float) -> BatchOptions:
    """The options that the job passes to `adaptive_batch`."""
    settings = BatchSettings(
        avg_data_volume_per_task=parse_size("volume", VOLUME), min_parallelism=1, max_parallelism=128
    )
    return BatchOptions(settings=settings, default_source_parallelism=files(scale))


class BatchRunner:
    """One run of the demo: two runs of the job, one after the other."""

    def __init__(self, console: Console, output: Path, options: argparse.Namespace, scale: float = SCALE) -> None:
        self._console = console
        self._output = output
        self._options = options
        self._scale = scale
        require(("pyspark", "pyarrow"), "demo")
        if not options.no_plot:
            require(("matplotlib",), "plot")

    def run(self) -> dict[str, Any]:
        """Run the demo. Returns the result, which is also written to the output directory."""
        tables = self._output / "work" / "tables"
        self._print(f"tables: {ORDERS * self._scale:.0f} orders, 30 % of them of one customer")
        self._print("a row costs time (a sleep instead of a service call), but no CPU: 2 cores suffice for 4 workers")
        write_tables(tables, self._scale)
        adaptive, fixed = autoscaled(WORKERS, files(self._scale)), defaults(WORKERS)
        under = self._run(adaptive, tables, "the autoscaler, policy batch, starting without workers")
        beside = self._run(fixed, tables, f"Spark's defaults on {WORKERS} workers")
        options = batch_options(self._scale)
        result = summary(under, beside, options)
        (self._output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        if not self._options.no_plot:
            self._draw(under, beside)
        self._print_summary(under, options, result)
        if not self._options.keep:
            shutil.rmtree(self._output / "work", ignore_errors=True)
            if result["ok"]:
                shutil.rmtree(self._output / "logs", ignore_errors=True)
        return result

    def _run(self, variant: Variant, tables: Path, title: str) -> BatchRun:
        with live_view(self._console) as shown:
            view = BatchView(shown, title)
            cluster = BatchCluster(variant, tables, self._output, view.update)
            self._print(f"{title}; configuration: {cluster.file}")
            self._print(f"logs: {cluster.processes.logs}")
            return cluster.run()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _draw(self, under: BatchRun, beside: BatchRun) -> None:
        from autoscaler.demo.spark_batch.plot import draw  # noqa: PLC0415 - it needs matplotlib

        draw(under, beside, self._output / "plot.png")

    def _print_summary(self, under: BatchRun, options: BatchOptions, result: Mapping[str, Any]) -> None:
        self._print("")
        self._print(table(under.application, options))
        self._print("")
        for text in describe_result(result):
            self._print(text)
        self._print(f"  result: {self._output / 'result.json'}")
        if not self._options.no_plot:
            self._print(f"  picture: {self._output / 'plot.png'}")
        if result["ok"]:
            self._print("success: the autoscaler added workers, released them, and both runs wrote the same results")
        for reason in result["reasons"]:
            self._print(f"failed: {reason}")
        if result["reasons"]:
            self._print(f"the logs are in {self._output / 'logs'}")


@dataclass(slots=True)
class BatchView:
    """Shows the state of a run."""

    shown: LiveView
    title: str
    events: tuple[str, ...] = ()
    workers: int = 0

    def update(self, moment: Moment) -> None:
        """Show the state of the run at one time."""
        rescale = moment.cluster.get("rescale")
        event = None if rescale is None else f"{rescale['before']} -> {rescale['to']} workers ({rescale['at'][11:19]})"
        if event is not None and event not in self.events:
            self.events = (*self.events, event)
        self.shown.show(line(moment), whole(moment, self.title, self.events), self.events)


def line(moment: Moment) -> str:
    """The state of a run in one line."""
    return f"{moment.at:5.0f} s  {_tasks(moment)}  workers {_workers(moment)}  {moment.phase}: {_decision(moment)}"


def whole(moment: Moment, title: str, events: tuple[str, ...]) -> RenderableType:
    """The state of a run as a table."""
    result = Table(title=f"autoscaler demo: {title}: {moment.phase}", title_justify="left", expand=False, min_width=76)
    for name in ("time", "tasks", "workers"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("last decision", ratio=1, min_width=38)
    result.add_row(f"{moment.at:.0f} s", _tasks(moment), _workers(moment), Text(_decision(moment)))
    result.add_section()
    for event in events:
        result.add_row("", "", "", Text(event))
    return result


def _tasks(moment: Moment) -> str:
    metrics = (moment.cluster.get("observation") or {}).get("metrics") or {}
    found = [_number(metrics.get(name)) for name in ("running_tasks", "pending_tasks")]
    return f"{found[0]} running, {found[1]} pending"


def _number(metric: Any) -> str:  # noqa: ANN401 - JSON of any shape
    value = metric.get("value") if isinstance(metric, dict) else metric
    return "?" if value is None else f"{value:.0f}"


def _workers(moment: Moment) -> str:
    desired = moment.cluster.get("current")
    return str(moment.workers) if desired in (None, moment.workers) else f"{moment.workers} -> {desired}"


def _decision(moment: Moment) -> str:
    decision = moment.cluster.get("decision")
    if decision and any(each.get("reason") == "missing" for each in decision["recommendations"]):
        return "the driver does not respond yet"
    return describe(decision) if decision else str(moment.cluster.get("problem") or "(no decision yet)")


def describe_result(result: Mapping[str, Any]) -> list[str]:
    """List the daemon's rescales with their reasons, and the figures of both runs."""
    lines = ["the daemon, seconds since the job began:"]
    lines += [
        f"  at {each['at']:.0f} s: {each['before']} -> {each['to']} workers: {each['reason']}"
        for each in result["autoscaler"]["rescales"]
    ]
    lines.append("")
    names = (("autoscaler", "the autoscaler"), ("fixed", "fixed, Spark's defaults"))
    for key, name in names:
        run = result[key]
        lines.append(
            f"  {name:<24} {run['time_s']:4.0f} s, {run['worker_seconds']} worker-seconds, of which tasks took "
            f"{run['task_seconds']}; stages that read shuffles by the rule: {run['stages_by_the_rule']} of "
            f"{run['stages_that_read_shuffles']}; failed tasks: {run['failed_tasks']}; "
            f"stages computed again: {len(run['repeated_stages'])}"
        )
    saved, more = result["fewer_worker_seconds"], result["more_time"]
    lines.append(
        f"  {abs(saved):.0%} {'fewer' if saved >= 0 else 'more'} worker-seconds in {abs(more):.0%} "
        f"{'more' if more >= 0 else 'less'} time; results {'equal' if result['results_equal'] else 'differ'}"
    )
    return lines
