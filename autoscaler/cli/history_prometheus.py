"""`autoscaler history import --prometheus`: the history that a Prometheus server has."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import options as arguments
from autoscaler.cli import spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import complain, print_json, progress, say
from autoscaler.core.durations import format_duration, parse_duration
from autoscaler.core.explain import count_of
from autoscaler.ports import AutoscalerError, UnavailableError

if TYPE_CHECKING:
    from autoscaler.config.model import Cluster, Config
    from autoscaler.history.ingest_prometheus import Answer, Want
    from autoscaler.sources.prometheus import Prometheus, Query, Ranges, Series

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

OK, FAILED = 0, 1

PATIENCE = 60.0
"""Seconds that an answer may take. A daemon's time-out is for an instant, and this asks for hours."""

ATTEMPTS = 5
LONGEST_WAIT = 30.0
"""Seconds between two attempts at most."""

_CLUSTER = "{cluster}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `history import` from Prometheus to a parser."""
    add = parser.add_argument_group("from Prometheus instead of directories").add_argument
    add(
        "--prometheus",
        nargs="?",
        const="",
        type=_url,
        metavar="URL",
        help="import what a Prometheus server has of the clusters of --config: the one of their sources, or this one",
    )
    add("--config", type=Path, metavar="CONFIG", help="the configuration (YAML) whose clusters and queries are meant")
    add(
        "--from",
        dest="since",
        type=arguments.moment,
        metavar="TIME",
        help="from then on, like 2026-01-31 or 2026-01-31T17:05:00Z",
    )
    add("--to", dest="until", type=arguments.moment, metavar="TIME", help="up to then (default: now)")
    add("--step", type=_span, default=timedelta(seconds=15), metavar="TIME", help="between samples (default: 15s)")
    add("--window", type=_span, default=timedelta(hours=6), metavar="TIME", help="asked at a time (default: 6h)")
    add("--rate", type=arguments.above, default=2.0, metavar="N", help="at most so many queries a second (default: 2)")
    add(
        "--replicas",
        metavar="QUERY",
        help="PromQL of the size a cluster was told to have; {cluster} becomes its name, else the label `cluster` "
        "tells (default: autoscaler_current_replicas, which the daemon exports)",
    )
    add(
        "--ready",
        metavar="QUERY",
        help="likewise of the replicas that are up (default: with --replicas the same, else autoscaler_ready_replicas)",
    )


def _url(text: str) -> str:
    # Empty where none is given. What follows --prometheus is taken for its URL.
    if text and not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL like http://prometheus:9090; DATASET goes before it")
    return text


def _span(text: str) -> timedelta:
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if span < timedelta(seconds=1) or span % timedelta(seconds=1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds, at least one")
    return span


@dataclass(frozen=True, slots=True)
class _Told:
    """What came of a cluster: how many observations, and how many of them have a size."""

    observations: int
    sized: int


def run(options: argparse.Namespace, dataset: Path) -> int:
    """Run the command. Returns the exit code.

    Args:
        options: what the parser of `history import` has parsed.
        dataset: where the observations are added.
    """
    spark_options.needed("history")
    from autoscaler import config as configurations
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.ingest_prometheus import differing, observations
    from autoscaler.history.progress import watched

    _check(options, dataset)
    config = configurations.load(options.config, os.environ)
    opened = open_dataset(dataset, make=True)
    wants, answers, asked = ask(config, options, dataset)
    with (
        spark_options.opened(options, "history") as spark,
        opened.writing() as write,
        watched(spark, f"making observations of {count_of(len(answers), 'answer')}"),
    ):
        rows = observations(spark, answers, wants, options.step)
        spark_options.tell_plan(options, {"the observations": rows})
        staged = opened.stage(spark, rows, "prometheus")
        merged = write(spark, {"observations": staged})
        # What is new is there as it was brought: what is not the same was there before.
        until = None if options.until is None else options.until + options.step
        there = opened.read(spark, "observations", since=options.since, until=until, clusters=list(config.clusters))
        different = differing(staged, there) if merged.known.get("observations") else 0
        counted = staged.groupBy("cluster").agg({"*": "count", "desired": "count"}).collect()
    counts = {row["cluster"]: _Told(row["count(1)"], row["count(desired)"]) for row in counted}
    told = {name: counts.get(name, _Told(0, 0)) for name in config.clusters}
    added, known = merged.added.get("observations", 0), merged.known.get("observations", 0)
    _tell(
        options, told, {"asked": asked, "answers": len(answers), "added": added, "known": known, "different": different}
    )
    return OK if counts else FAILED


def _check(options: argparse.Namespace, dataset: Path) -> None:
    from autoscaler.history.ingest_prometheus import MOST_POINTS

    if "://" in str(dataset):
        raise wrong(f"{dataset}: answers of Prometheus are kept in the dataset, which must be a directory here")
    for name, given in (("--config CONFIG", options.config), ("--from TIME", options.since)):
        if given is None:
            raise wrong(f"history import --prometheus needs {name}")
    if options.until is not None and options.until <= options.since:
        raise wrong("--to must be after --from")
    if options.window < options.step:
        raise wrong("--window must not be shorter than --step")
    points = options.window // options.step
    if points > MOST_POINTS:
        most = format_duration(MOST_POINTS * options.step)
        raise wrong(
            f"--window {format_duration(options.window)} has {points:,} steps of {format_duration(options.step)}: "
            f"Prometheus gives {MOST_POINTS:,} at a time; at most --window {most}"
        )
    if options.ready is not None and options.replicas is None:
        raise wrong("--ready needs --replicas")


# What is asked


def _wants(config: Config, options: argparse.Namespace) -> Iterator[Want]:
    """All that is wanted of the clusters that Prometheus knows of."""
    from autoscaler.history.ingest_prometheus import DESIRED, READY, Want
    from autoscaler.sources.prometheus import Query

    for name, cluster in config.clusters.items():
        server = _server(config, cluster, options.prometheus)
        if server is None:
            complain(f"Left out: cluster {name}, which has no metric of a source of type prometheus.")
            continue
        for metric, wanted in cluster.metrics.items():
            # What another source had read, the daemon exports: if Prometheus has that, it is as good.
            query = wanted.query if isinstance(wanted.query, Query) else _exported(name, metric)
            source = config.sources[wanted.source]
            yield Want(name, metric, _at(source, options.prometheus) or server, query)
        for size, query in ((DESIRED, _size(options, name)), (READY, _size(options, name, ready=True))):
            yield Want(name, size, server, query)


def _server(config: Config, cluster: Cluster, url: str) -> Prometheus | None:
    """Who is asked for what is read elsewhere: as for another metric of the cluster, or of another one, or `url`."""
    from autoscaler.sources.prometheus import Prometheus

    sources = [config.sources[metric.source] for metric in cluster.metrics.values()]
    for source in (*sources, *(config.sources.values() if url else ())):
        found = _at(source, url)
        if found is not None:
            return found
    return Prometheus(url) if url else None


def _at(source: object, url: str) -> Prometheus | None:
    """A source, if it is a Prometheus server, at another address if one is given."""
    from autoscaler.sources.prometheus import Prometheus

    if not isinstance(source, Prometheus):
        return None
    return replace(source, url=url) if url else source


def _exported(cluster: str, metric: str) -> Query:
    from autoscaler.sources.prometheus import Query

    by = "by (cluster, metric)"
    age = "timestamp(autoscaler_metric_age_seconds) - autoscaler_metric_age_seconds"
    return Query(f"max {by} (autoscaler_metric_value)", {"cluster": cluster, "metric": metric}, age=f"min {by} ({age})")


def _size(options: argparse.Namespace, cluster: str, *, ready: bool = False) -> Query:
    from autoscaler.sources.prometheus import Query

    asked = options.replicas
    if ready and (options.ready or asked is None):
        asked = options.ready
    if asked is None:
        # Of two daemons, one that took over from the other, both may be there for some minutes.
        own = "autoscaler_ready_replicas" if ready else "autoscaler_current_replicas"
        return Query(f"max by (cluster) ({own})", {"cluster": cluster})
    # In parentheses it is no plain selector, of which the time of its samples would be asked for as well.
    if _CLUSTER in asked:
        name = cluster.replace("\\", "\\\\").replace('"', '\\"')
        return Query(f"({asked.replace(_CLUSTER, name)})")
    return Query(f"({asked})", {"cluster": cluster})


# Asking


def ask(config: Config, options: argparse.Namespace, dataset: Path) -> tuple[list[Want], list[Answer], int]:
    """Ask for all that is not kept yet.

    Args:
        config: whose clusters and queries.
        options: of which times, and how.
        dataset: where answers are kept.

    Returns:
        What is wanted, the answers to it, and how many of them were not there.

    Raises:
        AutoscalerError: a server does not answer; what it had answered is kept.
    """
    from autoscaler.history.ingest_prometheus import DIRECTORY, plan, spans

    wants = list(_wants(config, options))
    if not wants:
        raise wrong(
            f"{config.path}: no cluster has a metric of a source of type prometheus; say where with --prometheus URL"
        )
    now = datetime.fromtimestamp(time.time(), UTC)
    window = options.window // options.step * options.step
    windows = spans(options.since, options.until or now, window, options.step, now)
    if not windows:
        raise wrong("--from and --to: there is no step in between that is over for a minute")
    answers = plan(dataset / DIRECTORY, wants, windows, options.step)
    return wants, answers, _fetch(answers, options)


def _fetch(answers: Sequence[Answer], options: argparse.Namespace) -> int:
    """Ask for what is not there. Returns how many answers that were."""
    from autoscaler.history.ingest_prometheus import fetch
    from autoscaler.sources.prometheus import Ranges

    todo = [answer for answer in answers if not answer.there]
    pace = _Pace(1 / options.rate)
    with ExitStack() as opened, progress("asking Prometheus", len(todo)) as advanced:
        servers: dict[Prometheus, Ranges] = {}
        for done, answer in enumerate(todo):
            if answer.server not in servers:
                servers[answer.server] = opened.enter_context(Ranges(answer.server, PATIENCE))
            asker = _Asker(servers[answer.server], pace, max(ATTEMPTS, answer.server.attempts))
            try:
                fetch(answer, options.step, asker.ask)
            except UnavailableError as error:
                begun = datetime.fromtimestamp(answer.span.begin, UTC)
                raise AutoscalerError(
                    f"{error}; {len(answers) - len(todo) + done} of {len(answers)} answers are kept, all those up to "
                    f"{begun:%Y-%m-%d %H:%M:%S} UTC: the same command goes on from there"
                ) from error
            except OSError as error:
                raise AutoscalerError(f"{answer.file}: cannot be written: {error.strerror}") from error
            advanced(done + 1)
    return len(todo)


class _Pace:
    """Lets one query begin only so long after the other."""

    def __init__(self, apart: float) -> None:
        self._apart = apart
        self._next = 0.0

    def wait(self) -> None:
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + self._apart


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks at a pace, and again while the server is unavailable or too slow."""

    ranges: Ranges
    pace: _Pace
    attempts: int

    def ask(self, query: str, begin: datetime, end: datetime, step: timedelta) -> list[Series]:
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

        def once() -> list[Series]:
            self.pace.wait()
            return self.ranges.ask(query, begin, end, step)

        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            wait=wait_random_exponential(multiplier=1, max=LONGEST_WAIT),
            retry=retry_if_exception_type(UnavailableError),
            reraise=True,
        )
        return retrying(once)


# What came of it


def _tell(options: argparse.Namespace, told: Mapping[str, _Told], counts: Mapping[str, int]) -> None:
    if options.json:
        clusters: dict[str, Any] = {
            name: {"observations": one.observations, "with_size": one.sized} for name, one in told.items()
        }
        print_json({**counts, "clusters": clusters})
        return
    say(
        f"{count_of(counts['asked'], 'answer')} asked for, {counts['answers'] - counts['asked']} were there already.",
        f"{count_of(counts['added'], 'observation')} added, {counts['known']} known already, of "
        f"{count_of(sum(one.observations > 0 for one in told.values()), 'cluster')}.",
    )
    if counts["different"]:
        complain(
            f"{count_of(counts['different'], 'observation')} of those say something else than Prometheus now does: "
            "other metrics or sizes, as when the configuration was another one. They stay as they are; to have all "
            "as it is now, import into a new dataset, to which _prometheus/ of this one may be copied: it has the "
            "answers."
        )
    nothing = sorted(name for name, one in told.items() if not one.observations)
    unsized = sorted(name for name, one in told.items() if one.observations and not one.sized)
    if nothing:
        complain(f"Prometheus has nothing of {', '.join(nothing)} in that time.")
    if unsized:
        complain(
            f"No size is known of {', '.join(unsized)}: Prometheus has no autoscaler_current_replicas of it, or "
            "--replicas gives nothing; nothing can be said of rescales then."
        )
