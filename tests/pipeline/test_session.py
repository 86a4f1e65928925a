"""The session of the pipeline."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys
from autoscaler.pipeline.session import session
settings = {"spark.ui.enabled": "false", "spark.driver.memory": "600m", "spark.driver.extraJavaOptions": sys.argv[1]}
with session("test", master="local[1]", settings=settings) as spark:
    beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    print(beans[0].getName(), spark._jvm.java.lang.System.getProperty("given", "nothing"))
"""


@pytest.mark.parametrize(
    ("options", "variable", "told"),
    [
        ("-Dgiven=this", "", "PS this"),
        ("-Dgiven=this -XX:+UseSerialGC", "", "Copy this"),
        ("", "-XX:+UseSerialGC", "Copy nothing"),
    ],
)
def test_a_collector_that_somebody_chose_is_the_only_one(options: str, variable: str, told: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, options],
        env={**os.environ, "JAVA_TOOL_OPTIONS": variable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    name, given = answer.stdout.split()[0], answer.stdout.split()[-1]
    assert f"{name} {given}" == told
