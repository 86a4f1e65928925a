"""The session of the pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys
from autoscaler.history.session import session
settings = {"spark.ui.enabled": "false", "spark.driver.memory": "600m"}
settings |= dict(one.split("=", 1) for one in sys.argv[1:])
with session("test", master="local[1]", settings=settings) as spark:
    beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    print(beans[0].getName(), spark._jvm.java.lang.System.getProperty("given", "nothing"))
"""
EXTRA, DEFAULT = "spark.driver.extraJavaOptions=-Dgiven=this", "spark.driver.defaultJavaOptions="
SERIAL = "-XX:+UseSerialGC"


@pytest.mark.parametrize(
    ("properties", "variables", "defaults", "output"),
    [
        ([EXTRA], {}, "", "PS this"),
        ([f"{EXTRA} {SERIAL}"], {}, "", "Copy this"),
        ([EXTRA, DEFAULT + SERIAL], {}, "", "Copy this"),
        ([], {"JAVA_TOOL_OPTIONS": SERIAL}, "", "Copy nothing"),
        ([], {"SPARK_SUBMIT_OPTS": SERIAL}, "", "Copy nothing"),
        ([], {}, "spark.driver.defaultJavaOptions -XX:+UseG1GC", "PS nothing"),
    ],
)
def test_a_collector_that_was_chosen_keeps_java_from_nothing(
    properties: list[str], variables: dict[str, str], defaults: str, output: str, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults + "\n")
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, *properties],
        env={**os.environ, **variables, "SPARK_CONF_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    name, given = answer.stdout.split()[0], answer.stdout.split()[-1]
    assert f"{name} {given}" == output
