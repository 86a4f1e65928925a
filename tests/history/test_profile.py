"""Profiles computed by Spark: a fleet's dataset compared with its true values, and the command."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta, timezone
from datetime import time as clock
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from autoscaler import cli
from autoscaler.core.model import Direction
from autoscaler.core.workload_profile import Profile, seasonal_value
from autoscaler.history.dataset import Dataset, open_dataset
from autoscaler.history.minutes import COLUMNS
from autoscaler.history.profile_job import (
    PROFILES,
    _latest,
    _lives,
    _minutes,
    _renames,
    fetched,
    profiles,
    stored,
    write,
)
from autoscaler.ports import AutoscalerError
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import PLANTS
from autoscaler.trace.profile_file import file_name, load
from tests.history.fleet import DAY, MONDAY, Fleet
from tests.history.fleet import write as write_fleet
from tests.history.simulated import followed, minutes
from tests.history.written import dataset as written

BEGIN = datetime.combine(MONDAY, clock(), UTC)
MADE_AT = datetime(2026, 2, 1, tzinfo=UTC)
FLEET = Fleet(clusters=3, days=1, interval=60.0, together=2)
WEEKS = Fleet(clusters=2, days=8, interval=300.0, together=1)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("history") / "dataset"
    write_fleet(spark, FLEET, directory)
    return directory


@pytest.fixture(scope="module")
def weeks(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("weeks") / "dataset"
    write_fleet(spark, WEEKS, directory)
    return directory


def _profiles(spark: SparkSession, dataset: Path) -> dict[str, Profile]:
    rows = profiles(spark, open_dataset(dataset), made_at=MADE_AT).collect()
    return {row.cluster: load(row.profile) for row in rows}


def test_each_cluster_of_a_fleet_gets_its_profile(spark: SparkSession, history: Path) -> None:
    found = _profiles(spark, history)

    assert sorted(found) == [truth.cluster for truth in FLEET.truths()]
    for truth in FLEET.truths():
        profile = found[truth.cluster]
        assert profile.observations == 1440
        assert profile.capacity is not None
        for size in (4, 10):
            capacity = profile.capacity.rate * size**profile.capacity.exponent
            assert capacity == pytest.approx(truth.rate * size**truth.exponent, rel=0.07)
        assert profile.times  # of the rescales that are in the dataset
        assert profile.season is None


@pytest.mark.e2e
def test_python_workers_and_this_process_compute_the_same_profiles(spark: SparkSession, history: Path) -> None:
    both = [
        profiles(spark, open_dataset(history), made_at=MADE_AT, in_workers=in_workers).orderBy("cluster").collect()
        for in_workers in (False, True)
    ]
    assert both[0] == both[1]
    assert len(both[0]) == FLEET.clusters


@pytest.mark.e2e
def test_a_week_of_a_fleet_gives_seasons_and_times(spark: SparkSession, weeks: Path) -> None:
    found = _profiles(spark, weeks)

    monday = datetime(MONDAY.year, MONDAY.month, MONDAY.day, tzinfo=UTC).timestamp()
    times = np.arange(0.0, 7 * DAY, 60.0)
    for truth in WEEKS.truths():
        profile = found[truth.cluster]
        assert profile.capacity is not None
        assert profile.capacity.exponent == pytest.approx(truth.exponent, abs=0.05)
        assert profile.season is not None
        season = np.array([seasonal_value(profile.season.usual, monday + time) for time in times])
        usually = truth.usual(times)
        assert np.abs(season - usually).mean() < 0.05 * usually.mean()
        assert profile.times[Direction.UP]["stall"].median == pytest.approx(truth.stall_up, rel=0.1)
        assert profile.times[Direction.UP]["start_up"].median == pytest.approx(truth.startup, rel=0.1)


def test_an_observation_counts_for_its_minute_as_in_python(spark: SparkSession, tmp_path: Path) -> None:
    records, _ = followed(Load("short", tuple([400.0] * 300 + [1100.0] * 600), rate_per_worker=100.0), PLANTS["k8s"])
    made = written(tmp_path / "dataset", records)
    seen = open_dataset(made).read(spark, "observations")
    for metric in ("arrivals", "throughput", "utilization"):
        seen = seen.withColumn(metric, F.col("metrics")[metric]["value"])

    rows = _minutes(seen, 60.0).orderBy("minute").toPandas()

    expected = minutes(records)
    for column in COLUMNS:
        np.testing.assert_allclose(rows[column].astype(float), getattr(expected, column), rtol=1e-9, err_msg=column)
    assert expected.late.max() == 1.0
    assert expected.behind.max() == 1.0


def _with(spark: SparkSession, dataset: Path, **columns: Any) -> DataFrame:
    """Observations of a dataset with other values in some columns."""
    rows = open_dataset(dataset).read(spark, "observations")
    for column, value in columns.items():
        rows = rows.withColumn(column, value)
    return rows


class _Changed(Dataset):
    """A dataset with changed observations."""

    __slots__ = ("rows",)
    rows: DataFrame

    def __init__(self, whole: Dataset, rows: DataFrame) -> None:
        for each in ("path", "_layout"):
            object.__setattr__(self, each, getattr(whole, each))
        object.__setattr__(self, "rows", rows)

    def read(self, spark: SparkSession, table: str, **part: Any) -> DataFrame:
        return self.rows if table == "observations" else super().read(spark, table, **part)


@pytest.mark.e2e
def test_the_last_day_begins_before_the_requested_end(history: Path) -> None:
    dataset = open_dataset(history)
    assert dataset.dates() == (MONDAY,)
    tuesday = MONDAY + timedelta(days=1)
    for until in (None, tuesday, BEGIN + timedelta(days=1), tuesday + timedelta(days=9), BEGIN + timedelta(seconds=1)):
        assert _latest(dataset, until) == MONDAY
    assert _latest(dataset, MONDAY) is None
    assert _latest(dataset, BEGIN) is None


def test_the_requested_time_may_be_in_another_time_zone(spark: SparkSession, history: Path) -> None:
    dataset = open_dataset(history)
    whole = dataset.read(spark, "observations").count()
    east, west = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
    # by their own calendars it is Tuesday then, and Sunday
    since, until = (BEGIN + timedelta(hours=20)).astimezone(east), (BEGIN + timedelta(hours=4)).astimezone(west)
    assert dataset.read(spark, "observations", since=since).count() == whole / 6
    assert dataset.read(spark, "observations", until=until).count() == whole / 6


def test_readings_that_are_not_numbers_are_ignored(spark: SparkSession, history: Path) -> None:
    bad = F.when(F.minute("at") % 10 == 0, F.lit(math.nan)).when(F.minute("at") % 15 == 0, F.lit(-math.inf))
    rows = _with(
        spark, history, arrivals=bad.otherwise(F.col("arrivals")), utilization=F.lit(None).cast("double"), lag=bad
    )

    profiled = profiles(spark, _Changed(open_dataset(history), rows), made_at=MADE_AT).collect()

    assert len(profiled) == FLEET.clusters
    for row in profiled:
        assert load(row.profile).observations == 1440
        assert "no_utilization" in {finding.kind for finding in row.findings}


@pytest.mark.e2e
def test_fetched_data_is_released(spark: SparkSession) -> None:
    java = spark.sparkContext._jvm.java.lang

    def used() -> int:
        java.System.gc()
        return int(java.Runtime.getRuntime().totalMemory() - java.Runtime.getRuntime().freeMemory())

    each = 100_000
    large = spark.range(200).select(F.repeat(F.format_string("%05d", "id"), each // 5).alias("profile"))

    def fetch() -> int:
        with stored(large) as rows:
            return sum(len(row.profile) for row in fetched(rows))

    assert fetch() == 200 * each
    before = used()
    assert [fetch(), fetch()] == [200 * each] * 2
    assert used() - before < 200 * each


def test_a_small_fleet_does_not_use_hundreds_of_tasks(spark: SparkSession, history: Path) -> None:
    few = spark.conf.get("spark.sql.shuffle.partitions")
    context = spark.sparkContext
    context.setJobGroup("small", "profiles of three clusters")
    spark.conf.set("spark.sql.shuffle.partitions", 200)
    try:
        with stored(profiles(spark, open_dataset(history), made_at=MADE_AT)) as rows:
            assert len(list(fetched(rows))) == FLEET.clusters
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", few)
        context.setLocalProperty("spark.jobGroup.id", None)
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("small")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    tasks = [stage.numTasks for stage in stages if stage]
    assert len(tasks) > 4
    assert max(tasks) < 20


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("lives", "found"),
    [
        (
            [("always", 0, 48, 9.0), ("old", 0, 20, 5.0), ("new", 20.1, 48, 5.5)],
            {"old": ("new", None), "new": (None, "old")},
        ),
        # The cluster with the most similar arrivals.
        (
            [("old", 0, 20, 5.0), ("near", 20.1, 48, 5.1), ("far", 20.2, 48, 5.5)],
            {"old": ("near", None), "near": (None, "old"), "far": (None, "old")},
        ),
        # Over midnight, and one that was renamed twice.
        (
            [("a", 0, 23.9, 5.0), ("b", 24.1, 36, 5.2), ("c", 36.1, 48, 5.0)],
            {"a": ("b", None), "b": ("c", "a"), "c": (None, "b")},
        ),
        ([("always", 0, 48, 9.0), ("short", 20, 20.1, 5.0)], {}),
        ([("old", 0, 20, 5.0), ("late", 23, 48, 5.0), ("other", 20.1, 48, 9.0)], {}),
        ([("old", 0, 20, math.nan), ("new", 20.1, 48, 5.0)], {}),
    ],
    ids=["one", "the nearest", "twice", "not itself", "too late, or another load", "nothing known"],
)
def test_a_cluster_that_ends_when_another_begins_with_as_many_arrivals_was_renamed(
    spark: SparkSession, lives: list[tuple[str, float, float, float]], found: dict[str, tuple[str | None, str | None]]
) -> None:
    start = datetime(2026, 1, 5, tzinfo=UTC)
    rows = [(name, start + timedelta(hours=hour), level) for name, *ends, level in lives for hour in ends]
    frame = spark.createDataFrame(rows, "cluster string, at timestamp, arrivals double")
    renames = _renames([row.asDict() for row in _lives(frame).collect()])
    assert {name: (of.get("renamed_to"), of.get("renamed_from")) for name, of in renames.items()} == found


@pytest.mark.e2e
def test_a_cluster_that_was_renamed_is_reported_and_can_be_joined(spark: SparkSession, weeks: Path) -> None:
    name_then = F.when((F.col("cluster") == "job-0000") & (F.col("at") < "2026-01-08"), F.lit("old-name"))
    rows = _with(spark, weeks, cluster=name_then.otherwise(F.col("cluster")))
    dataset = _Changed(open_dataset(weeks), rows)

    apart = {row.cluster: load(row.profile) for row in profiles(spark, dataset, made_at=MADE_AT).collect()}
    one = {
        row.cluster: load(row.profile)
        for row in profiles(spark, dataset, made_at=MADE_AT, renamed={"old-name": "job-0000"}).collect()
    }

    texts = {cluster: [each.text for each in p.findings if each.kind == "renamed"] for cluster, p in apart.items()}
    assert "--rename old-name=job-0000" in texts["old-name"][0]
    assert "--rename old-name=job-0000" in texts["job-0000"][0]
    assert texts["job-0001"] == []
    assert one["job-0000"].observations == 8 * 288
    assert "old-name" not in one


@pytest.mark.e2e
def test_files_are_written_atomically_and_named_after_their_cluster(
    spark: SparkSession, history: Path, tmp_path: Path
) -> None:
    some = profiles(spark, open_dataset(history), made_at=MADE_AT, clusters=["job-0001", "job-0002"])

    with stored(some) as rows:
        assert rows.schema == PROFILES
        written_rows = list(write(fetched(rows), tmp_path / "new" / "profiles"))

    files = sorted((tmp_path / "new" / "profiles").iterdir())
    assert [file.name for file in files] == [file_name("job-0001"), file_name("job-0002")]
    assert {load(file.read_text()).cluster for file in files} == {row.cluster for row in written_rows}


# the command


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(_options: object, _command: str, **_more: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("autoscaler.cli.spark_options.open_session", opened)


def _run(*arguments: object) -> int:
    return cli.main(["profile", *map(str, arguments)])


@pytest.mark.usefixtures("here")
def test_the_command_writes_files_and_a_table_and_reports(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    out, table = tmp_path / "profiles", tmp_path / "table"

    assert _run(history, "--out", out, "--table", table, "--explain", "--holiday", "2026-01-06") == 0

    printed = capsys.readouterr()
    assert "\njob-0000  1,440" in printed.out
    assert "job-0000: little_history: " in printed.out
    assert printed.out.rstrip().endswith(f"3 profiles in {out} and {table}")
    assert "HashAggregate" in printed.err
    assert "ArrowPythonRunner" not in printed.err
    assert len(list(out.iterdir())) == 3
    assert sorted(row.cluster for row in spark.read.parquet(str(table)).collect()) == sorted(
        load(file.read_text()).cluster for file in out.iterdir()
    )


def test_the_typical_week_is_in_the_time_zone_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = "{type: schedule, windows: [{name: w, start: '0 1 * * *', duration: 1h, max: 2}]}"
    cluster = f"{{target: {{type: advice}}, max: 9, policies: {{p: {schedule}}}"
    config = tmp_path / "config.yaml"
    asked: dict[str, str] = {}
    berlin, cairo, utc = (f"{cluster}, time_zone: {zone}}}" for zone in ("Europe/Berlin", "Africa/Cairo", "UTC"))
    clusters = f"clusters: {{a: {berlin}, b: {cairo}, c: {cluster}}}, d: {utc}}}"
    config.write_text(f"{clusters}\ndaemon: {{time_zone: America/Lima}}\n")
    open_dataset(str(tmp_path / "dataset"), make=True)

    def compute(*_: object, **options: Any) -> None:
        asked.update(options["time_zones"])
        raise AutoscalerError("enough")

    monkeypatch.setattr("autoscaler.cli.spark_options.open_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr("autoscaler.history.profile_job.profiles", compute)
    arguments = ("--out", tmp_path / "p", "--config", config, "--time-zone", "b=Asia/Tokyo")
    assert _run(tmp_path / "dataset", *arguments) == 1
    # The empty name stands for all others, such as members of fleets.
    assert asked == {"": "America/Lima", "a": "Europe/Berlin", "b": "Asia/Tokyo", "d": "UTC"}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock is not in UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.e2e
@pytest.mark.usefixtures("here", "elsewhere")
def test_the_command_prints_json_and_reports_missing_clusters(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--out",
        tmp_path / "p",
        "--cluster",
        "job-0001",
        "--cluster",
        "absent",
        "--from",
        "2026-01-05T06:00:00",
    )

    assert _run(history, *arguments, "--json") == 1

    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert row["cluster"] == "job-0001"
    assert row["begin"].startswith("2026-01-05T06:0")
    assert {"kind", "text", "replica_hours"} == set(row["findings"][0])
    assert "no observation of absent" in printed.err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--cluster", "absent"), "has no observation of absent", marks=pytest.mark.e2e),
        pytest.param(("--from", "2027-01-01"), "no observation in the time asked for", marks=pytest.mark.e2e),
        (("--from", "2026-01-06", "--to", "2026-01-05"), "--to must be after --from"),
        (("--holiday", "soon"), "'soon' is not a day like 2026-01-31"),
        (("--objective", "0s"), "expected above 0s"),
        (("--rename", "one"), "'one' is not like OLD=NEW"),
    ],
)
def test_the_command_reports_errors(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert _run(history, "--out", tmp_path / "p", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.usefixtures("here")
def test_the_command_does_not_overwrite_a_directory_that_is_not_a_table(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()

    assert _run(history, "--out", tmp_path / "p", "--table", tmp_path / "mine") == 2
    assert "is not a table of an earlier run" in capsys.readouterr().err
