"""The modules that a daemon imports at its start."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, autoscaler.daemon.service
seldom = ("autoscaler.simulation", "autoscaler.daemon.what_if", "autoscaler.daemon.postgres_store", "psycopg")
print(*sorted(name for name in sys.modules if name.startswith(seldom)))
"""


def test_the_simulator_and_the_postgresql_client_are_loaded_when_they_are_first_needed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
