"""Dataset, input and checkpoint in an object store: S3 as moto serves it, with the documented settings."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.clients.aws_server import REGION, Moto
from tests.history.test_follow import NOON, packed
from tests.sources.kafka_broker import missing

pytestmark = pytest.mark.e2e
pytest_plugins = ("tests.clients.aws_fixtures",)

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "history.md"
PATIENCE = 600.0
SMALL = ("spark.driver.memory=900m", "spark.sql.shuffle.partitions=2", "spark.ui.enabled=false")


def documented() -> list[str]:
    """The documented Spark properties for S3."""
    return re.findall(r"--conf (spark\.jars\.\w+=\S+)", DOCUMENTATION.read_text())


@dataclass
class Store:
    """A bucket, and commands that are configured to reach it."""

    moto: Moto
    root: Path
    bucket: str = field(default_factory=lambda: f"fleet-{secrets.token_hex(4)}")
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = self.moto.client("s3")
        self.client.create_bucket(Bucket=self.bucket)

    @property
    def url(self) -> str:
        return f"s3a://{self.bucket}"

    @property
    def properties(self) -> list[str]:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        reached = (f"endpoint={self.moto.url}", f"endpoint.region={REGION}", "path.style.access=true")
        ivy = f"spark.jars.ivy={cache / 'reactive-autoscaler' / 'ivy'}"
        return [*documented(), ivy, *SMALL, *(f"spark.hadoop.fs.s3a.{one}" for one in reached)]

    def names(self, under: str = "") -> list[str]:
        """The objects, except those that stand for directories."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=under)
        found = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return [name for name in found if not name.endswith("/")]

    def pack(self, daemon: str, hours: range) -> None:
        """Compressed hours of a daemon, in the bucket."""
        for hour in hours:
            file = packed(self.root / daemon / "history", NOON + timedelta(hours=hour))
            self.client.upload_file(str(file), self.bucket, str(file.relative_to(self.root)))

    def start(self, *words: str) -> subprocess.Popen[str]:
        options = [f"--conf={one}" for one in self.properties]
        command = [sys.executable, "-m", "autoscaler", *words, "--master", "local[2]", *options]
        with (self.root / "errors").open("w") as errors, (self.root / "out").open("w") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, text=True, start_new_session=True
            )
        self.processes.append(process)
        return process

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command; returns its output."""
        process = self.start(*words)
        ended = process.wait(PATIENCE)
        self.have_packages()
        assert ended == code, self.errors
        return self.out

    @property
    def out(self) -> str:
        return (self.root / "out").read_text()

    @property
    def errors(self) -> str:
        return (self.root / "errors").read_text()

    def have_packages(self) -> None:
        if "unresolved dependency" in self.errors:
            missing(f"Spark cannot fetch what S3 needs: {self.errors[-500:]}")

    def clear(self) -> None:
        """Kill all started processes, with the Java of each."""
        while self.processes:
            process = self.processes.pop()
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@pytest.fixture
def store(moto: Moto, identity: str, tmp_path: Path) -> Iterator[Store]:
    assert identity
    found = Store(moto, tmp_path)
    yield found
    found.clear()


def batches(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]


def test_the_documented_version_fits_the_hadoop_of_this_spark() -> None:
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = jar.stem.removeprefix("hadoop-client-api-")
    assert f"org.apache.hadoop:hadoop-aws:{version}," in documented()[0]


def test_following_into_it_counts_each_file_once_despite_a_kill_and_a_removal(store: Store) -> None:
    for daemon in ("d0", "d1"):
        store.pack(daemon, range(3))
    follow = ("history", "follow", f"{store.url}/*/history", f"{store.url}/dataset", "--available-now", "--json")
    first = store.start(*follow, "--files", "3")
    deadline = time.monotonic() + PATIENCE
    # In the middle of the second batch.
    while not (batches(store.out) and store.names("dataset/_staging/")):
        store.have_packages()
        assert first.poll() is None, store.errors
        assert time.monotonic() < deadline, store.errors
        time.sleep(0.05)
    store.clear()
    (done,) = batches(store.out)
    assert (done["batch"], done["files"], done["new"]) == (0, 3, 9)
    assert store.names("dataset/_lock"), "what was killed has not given it back"

    (last,) = (name for name in store.names("d1/") if name.endswith("T14.jsonl.gz"))
    store.client.delete_object(Bucket=store.bucket, Key=last)
    (again,) = batches(store.run(*follow, "--files", "3"))
    assert (again["batch"], again["new"] + again["known"]) == (1, 6)
    # Each batch has added files to the newest day.
    assert list(dict.fromkeys(name.partition("/date=")[0] for name in store.names("dataset/"))) == [
        *(name for name in store.names("dataset/_follow/")),
        "dataset/_followers.json",
        "dataset/autoscaler-history.json",
        "dataset/decisions",
        "dataset/observations",
    ]
    query = "SELECT cluster, count(*) AS n, count(DISTINCT at) AS instants FROM decisions GROUP BY cluster ORDER BY 1"
    assert json.loads(store.run("history", "query", f"{store.url}/dataset", query, "--json")) == [
        {"cluster": "d0", "n": 9, "instants": 9},
        {"cluster": "d1", "n": 6, "instants": 6},
    ]


RACE = """
import sys
from autoscaler.history.dataset import BusyError, hadoop_files, open_dataset
from autoscaler.history.dataset.store import LOCK
from autoscaler.history.session import session

url, *properties = sys.argv[1:]
with session("race", master="local[2]", settings=dict(one.split("=", 1) for one in properties)) as spark:
    first, second = open_dataset(url, make=True), open_dataset(url)
    write = hadoop_files._write

    def late(stream, text):
        # The other one has found no lock; now this one is quicker.
        hadoop_files._write = write
        with second._layout.files.lock(LOCK):
            write(stream, text)

    hadoop_files._write = late
    try:
        with first._layout.files.lock(LOCK):
            print("both have it")
    except BusyError as error:
        print(error)
    for text in ("one", "two"):
        first.keep_note("x", text)
    print(first._layout.files.names(""), first.note("x"), first.note("y"), first._layout.files.names("none"))
"""


def test_of_two_simultaneous_writers_one_succeeds(store: Store) -> None:
    command = [sys.executable, "-c", RACE, f"{store.url}/dataset", *store.properties]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    (store.root / "errors").write_text(answer.stderr)
    store.have_packages()
    busy, notes = answer.stdout.splitlines() or [answer.stderr, ""]
    assert busy.startswith(f"{store.url}/dataset: is being written by another process; ")
    assert notes == "['_x', 'autoscaler-history.json'] two None []"


def test_it_is_imported_into_unless_another_process_writes_and_profiled(store: Store) -> None:
    store.pack("d0", range(2))
    lock = {"Bucket": store.bucket, "Key": "dataset/_lock"}
    command = ("history", "import", str(store.root / "d0" / "history"), f"{store.url}/dataset", "--json")
    marker = json.dumps({"format": "autoscaler-history", "version": 1})
    store.client.put_object(Bucket=store.bucket, Key="dataset/autoscaler-history.json", Body=marker)
    store.client.put_object(**lock, Body="process 1 on elsewhere")
    store.run(*command, code=1)
    assert "is being written by process 1 on elsewhere; wait until it is done, and if that" in store.errors
    assert f"remove {store.url}/dataset/_lock" in store.errors
    store.client.delete_object(**lock)
    assert json.loads(store.run(*command))["added"]["decisions"] == 6
    store.run("profile", f"{store.url}/dataset", "--out", str(store.root / "profiles"))
    assert [file.name for file in (store.root / "profiles").iterdir()] == ["d0.json"]
