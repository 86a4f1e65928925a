"""`autoscaler history import --prometheus`: imports the history that a Prometheus server has."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.cli import spark_options
from autoscaler.cli.configuration import load_live, with_clusters, wrong
from autoscaler.cli.options import above, duration, moment
from autoscaler.cli.output import FAILED, OK, print_error, print_json, print_lines, progress
from autoscaler.core.durations import format_duration
from autoscaler.core.wording import count_of
from autoscaler.ports import AutoscalerError, UnavailableError

if TYPE_CHECKING:
    from autoscaler.config.model import Cluster, Config
    from autoscaler.history.ingest_prometheus import Answer, Want
    from autoscaler.sources.prometheus import Prometheus, Query, Ranges, Series

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

TIMEOUT = 60.0
"""The time-out of a query in seconds. The time-out of a source is for one instant; these queries cover hours."""

ATTEMPTS = 5
MAX_WAIT = 30.0
"""Maximum seconds between two attempts."""

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
        help="import the clusters of --config from the Prometheus server of their sources, or from this URL",
    )
    add("--config", type=Path, metavar="CONFIG", help="the configuration file (YAML) with the clusters and queries")
    add(
        "--from",
        dest="since",
        type=moment,
        metavar="TIME",
        help="begin, like 2026-01-31 or 2026-01-31T17:05:00Z",
    )
    add("--to", dest="until", type=moment, metavar="TIME", help="end (default: now)")
    add(
        "--step",
        type=_span,
        default=timedelta(seconds=15),
        metavar="TIME",
        help="interval of the samples (default: 15s)",
    )
    add(
        "--window", type=_span, default=timedelta(hours=6), metavar="TIME", help="time range of one query (default: 6h)"
    )
    add("--rate", type=above, default=2.0, metavar="N", help="maximum queries per second (default: 2)")
    add(
        "--replicas",
        metavar="QUERY",
        help="PromQL query for the desired size of a cluster: {cluster} is replaced by its name; without {cluster}, "
        "the label `cluster` identifies it (default: autoscaler_current_replicas of the daemon)",
    )
    add(
        "--ready",
        metavar="QUERY",
        help="PromQL query for the ready replicas of a cluster, written like --replicas (default: the query of "
        "--replicas if that is given, else autoscaler_ready_replicas)",
    )


def _url(text: str) -> str:
    # Empty if no URL is given. Any argument that follows --prometheus is parsed as its URL.
    if text and not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL like http://prometheus:9090; DATASET goes before it")
    return text


def _span(text: str) -> timedelta:
    span = duration(text)
    if span < timedelta(seconds=1) or span % timedelta(seconds=1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds, at least one")
    return span


@dataclass(frozen=True, slots=True)
class _Counts:
    """The number of observations of a cluster, and of those with a size."""

    observations: int
    sized: int


def run(options: argparse.Namespace, dataset: Path) -> int:
    """Run `history import --prometheus`. Returns the exit code."""
    spark_options.require_pyspark("history")
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.ingest_prometheus import differing, observations
    from autoscaler.history.progress import show_progress

    _check(options, dataset)
    config = with_clusters(load_live(options.config))
    opened = open_dataset(dataset, make=True)
    wants, answers, asked = ask(config, options, dataset)
    with (
        spark_options.open_session(options, "history") as spark,
        opened.reading(),
        opened.writing() as writer,
        show_progress(spark, f"converting {count_of(len(answers), 'answer')}"),
    ):
        rows = observations(spark, answers, wants, options.step)
        spark_options.print_plans(options, {"the observations": rows})
        staged = writer.stage(rows, "prometheus")
        merged = writer.merge(spark, {"observations": staged})
        # New rows are stored as they are, so only rows that were stored before can differ.
        until = None if options.until is None else options.until + options.step
        there = opened.read(spark, "observations", since=options.since, until=until, clusters=list(config.clusters))
        different = differing(staged, there) if merged.known.get("observations") else 0
        counted = staged.groupBy("cluster").agg({"*": "count", "desired": "count"}).collect()
    counts = {row["cluster"]: _Counts(row["count(1)"], row["count(desired)"]) for row in counted}
    clusters = {name: counts.get(name, _Counts(0, 0)) for name in config.clusters}
    added, known = merged.added.get("observations", 0), merged.known.get("observations", 0)
    _report(
        options,
        clusters,
        {"asked": asked, "answers": len(answers), "added": added, "known": known, "different": different},
    )
    return OK if counts else FAILED


def _check(options: argparse.Namespace, dataset: Path) -> None:
    from autoscaler.history.ingest_prometheus import MAX_POINTS

    if "://" in str(dataset):
        raise wrong(
            f"{dataset}: the answers of Prometheus are stored in the dataset, which must be a directory of this machine"
        )
    for name, given in (("--config CONFIG", options.config), ("--from TIME", options.since)):
        if given is None:
            raise wrong(f"history import --prometheus needs {name}")
    if options.until is not None and options.until <= options.since:
        raise wrong("--to must be after --from")
    if options.window < options.step:
        raise wrong("--window must not be shorter than --step")
    points = options.window // options.step
    if points > MAX_POINTS:
        most = format_duration(MAX_POINTS * options.step)
        raise wrong(
            f"--window {format_duration(options.window)} has {points:,} steps of {format_duration(options.step)}: "
            f"the maximum of Prometheus is {MAX_POINTS:,}; use at most --window {most}"
        )
    if options.ready is not None and options.replicas is None:
        raise wrong("--ready needs --replicas")


# Queries


def _wants(config: Config, options: argparse.Namespace) -> Iterator[Want]:
    """The metrics and sizes of the clusters that have a source of type prometheus."""
    from autoscaler.history.ingest_prometheus import DESIRED, READY, Want
    from autoscaler.sources.prometheus import Query

    for name, cluster in config.clusters.items():
        server = _server(config, cluster, options.prometheus)
        if server is None:
            print_error(f"Left out: cluster {name}, which has no metric of a source of type prometheus.")
            continue
        for metric, wanted in cluster.metrics.items():
            # The daemon exports the readings of other sources: Prometheus may have them.
            query = wanted.query if isinstance(wanted.query, Query) else _exported(name, metric)
            source = config.sources[wanted.source]
            yield Want(name, metric, _at(source, options.prometheus) or server, query)
        for size, query in ((DESIRED, _size(options, name)), (READY, _size(options, name, ready=True))):
            yield Want(name, size, server, query)


def _server(config: Config, cluster: Cluster, url: str) -> Prometheus | None:
    """The server for readings of other sources: that of a metric of the cluster, else of any source, else `url`."""
    from autoscaler.sources.prometheus import Prometheus

    sources = [config.sources[metric.source] for metric in cluster.metrics.values()]
    for source in (*sources, *(config.sources.values() if url else ())):
        found = _at(source, url)
        if found is not None:
            return found
    return Prometheus(url=url) if url else None


def _at(source: object, url: str) -> Prometheus | None:
    """A source, if it is a Prometheus server, with another URL if one is given."""
    from autoscaler.sources.prometheus import Prometheus

    if not isinstance(source, Prometheus):
        return None
    return replace(source, url=url) if url else source


def _exported(cluster: str, metric: str) -> Query:
    from autoscaler.sources.prometheus import Query

    by = "by (cluster, metric)"
    age = "timestamp(autoscaler_metric_age_seconds) - autoscaler_metric_age_seconds"
    return Query(
        query=f"max {by} (autoscaler_metric_value)",
        match={"cluster": cluster, "metric": metric},
        age=f"min {by} ({age})",
    )


def _size(options: argparse.Namespace, cluster: str, *, ready: bool = False) -> Query:
    from autoscaler.sources.prometheus import Query

    asked = options.replicas
    if ready and (options.ready or asked is None):
        asked = options.ready
    if asked is None:
        # After a failover both daemons may be present for some minutes.
        own = "autoscaler_ready_replicas" if ready else "autoscaler_current_replicas"
        return Query(query=f"max by (cluster) ({own})", match={"cluster": cluster})
    # The parentheses prevent a plain selector, for which the times of its samples would be queried too.
    if _CLUSTER in asked:
        name = cluster.replace("\\", "\\\\").replace('"', '\\"')
        return Query(query=f"({asked.replace(_CLUSTER, name)})")
    return Query(query=f"({asked})", match={"cluster": cluster})


# Answers


def ask(config: Config, options: argparse.Namespace, dataset: Path) -> tuple[list[Want], list[Answer], int]:
    """Query everything that is not stored yet. Returns metrics and sizes, their answers, and the number queried now.

    Raises:
        AutoscalerError: a server does not answer; earlier answers stay stored.
    """
    from autoscaler.history.ingest_prometheus import DIRECTORY, plan, spans

    wants = list(_wants(config, options))
    if not wants:
        raise wrong(
            f"{config.path}: no cluster has a metric of a source of type prometheus; name the server with "
            "--prometheus URL"
        )
    now = datetime.fromtimestamp(time.time(), UTC)
    window = options.window // options.step * options.step
    windows = spans(options.since, options.until or now, window, options.step, now)
    if not windows:
        raise wrong("--from and --to: there is no step between them that is at least a minute old")
    answers = plan(dataset / DIRECTORY, wants, windows, options.step)
    return wants, answers, _fetch(answers, options)


def _fetch(answers: Sequence[Answer], options: argparse.Namespace) -> int:
    """Query the answers that are not stored. Returns their number."""
    from autoscaler.history.ingest_prometheus import fetch
    from autoscaler.sources.prometheus import Ranges

    missing = [answer for answer in answers if not answer.there]
    limiter = _RateLimiter(1 / options.rate)
    with ExitStack() as opened, progress("querying Prometheus", len(missing)) as advanced:
        servers: dict[Prometheus, Ranges] = {}
        for done, answer in enumerate(missing):
            if answer.server not in servers:
                servers[answer.server] = opened.enter_context(Ranges(answer.server, TIMEOUT))
            ask = _asking(servers[answer.server], limiter, max(ATTEMPTS, answer.server.attempts))
            try:
                fetch(answer, options.step, ask)
            except UnavailableError as error:
                begin = datetime.fromtimestamp(answer.span.begin, UTC)
                raise AutoscalerError(
                    f"{error}; {len(answers) - len(missing) + done} of {len(answers)} answers are stored, all up to "
                    f"{begin:%Y-%m-%d %H:%M:%S} UTC: the same command continues from there"
                ) from error
            except OSError as error:
                raise AutoscalerError(f"{answer.file}: cannot be written: {error.strerror}") from error
            advanced(done + 1)
    return len(missing)


class _RateLimiter:
    """Limits the rate of queries."""

    def __init__(self, apart: float) -> None:
        self._apart = apart
        self._next = 0.0

    def wait(self) -> None:
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + self._apart


def _asking(
    ranges: Ranges, limiter: _RateLimiter, attempts: int
) -> Callable[[str, datetime, datetime, timedelta], list[Series]]:
    """Queries at a limited rate, with retries while the server is unavailable or too slow."""
    from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    @retry(
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=1, max=MAX_WAIT),
        retry=retry_if_exception_type(UnavailableError),
        reraise=True,
    )
    def ask(query: str, begin: datetime, end: datetime, step: timedelta) -> list[Series]:
        limiter.wait()
        return ranges.ask(query, begin, end, step)

    return ask


# Output


def _report(options: argparse.Namespace, clusters: Mapping[str, _Counts], counts: Mapping[str, int]) -> None:
    if options.json:
        each = {name: {"observations": one.observations, "with_size": one.sized} for name, one in clusters.items()}
        print_json({**counts, "clusters": each})
        return
    print_lines(
        f"{count_of(counts['asked'], 'answer')} queried, {counts['answers'] - counts['asked']} stored before.",
        f"{count_of(counts['added'], 'observation')} added, {counts['known']} already known, of "
        f"{count_of(sum(one.observations > 0 for one in clusters.values()), 'cluster')}.",
    )
    if counts["different"]:
        print_error(
            f"{count_of(counts['different'], 'observation')} of those differ from what Prometheus has now: other "
            "metrics or sizes, as after a change of the configuration. They stay as they are. To replace them, import "
            "into a new dataset. To reuse the stored answers, copy _prometheus/ of this dataset into it before."
        )
    absent = sorted(name for name, one in clusters.items() if not one.observations)
    unsized = sorted(name for name, one in clusters.items() if one.observations and not one.sized)
    if absent:
        print_error(f"Prometheus has no samples of {', '.join(absent)} in that time.")
    if unsized:
        print_error(
            f"The size of {', '.join(unsized)} is not known: Prometheus has no autoscaler_current_replicas of it, or "
            "the query of --replicas has no result; rescales cannot be found."
        )
