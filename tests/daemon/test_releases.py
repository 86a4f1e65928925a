"""This version reads the data of each release, which write_release.py has written with the release's own daemon."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.write_release import RELEASES
from tests.docs.refresh import VERSION

pytestmark = pytest.mark.e2e


def autoscaler(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "autoscaler", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def shown(url: str) -> Any:
    return json.loads(autoscaler("status", "--url", url, "--json"))


def test_the_files_of_this_version_or_an_earlier_one_exist() -> None:
    assert [path.name for path in RELEASES.iterdir()]
    assert (RELEASES / VERSION).exists()


@pytest.mark.parametrize("release", sorted(RELEASES.iterdir()), ids=lambda path: path.name)
def test_state_and_history_of_a_release_are_read(tmp_path: Path, release: Path) -> None:
    shutil.copytree(release, tmp_path, dirs_exist_ok=True)
    replayed = json.loads(autoscaler("replay", tmp_path / "state" / "history", tmp_path / "config.yaml", "--json"))
    compared = replayed["clusters"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", "config.yaml"], cwd=tmp_path, stderr=file)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r'"url": ?"([^"]+)"', log.read_text())):
            assert daemon.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        explained = json.loads(autoscaler("explain", "held", "--last", "500", "--url", found[1], "--json"))
        # The daemon answers as soon as it listens, but knows the sizes only after the first observation.
        status = shown(found[1])
        while None in [cluster["desired"] for cluster in status["clusters"]]:
            assert time.monotonic() < deadline, status
            status = shown(found[1])
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
    # The history: every observation can be read, and is complete enough to decide again.
    assert {name: cluster["decisions"] > 10 for name, cluster in compared.items()} == {"held": True, "learning": True}
    assert [cluster["missing"] for cluster in compared.values()] == [[], []]
    # The state: manual controls stay in force, and earlier decisions can be explained.
    [held, learning] = status["clusters"]
    assert (held["desired"], held["controls"][0]["text"]) == (
        4,
        "the size is held at 4 by alice until it is resumed: a release",
    )
    assert (held["problem"], learning["problem"], status["reload"]) == (None, None, "ok")
    assert explained["decisions"][-1]["decision"]["at"][:19] == compared["held"]["from"][:19]
