"""Settings for all tests."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from autoscaler.core import foreign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import Producer

# The quick profile keeps `make test` short; CI runs the thorough one (HYPOTHESIS_PROFILE=thorough). Both draw the same
# examples each time, so that a build fails only because of a change. Run `explore` by hand to look for new ones.
settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# pytest-asyncio asks for the loop that was set before a test, and asyncio creates one if none was ever set. Nobody
# closes that loop: pytest would blame a later test in which garbage collection finds it.
asyncio.set_event_loop(None)

# A shell starts background jobs with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _secrets_of_other_tests() -> Iterator[None]:
    """Reset the mask: a password of one test ("wrong") must not be masked in messages that later tests read."""
    before = {name: value.copy() for name, value in vars(foreign.mask).items()}
    yield
    vars(foreign.mask).update(before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no test on real servers after the time that .ci/run has for them on a slow machine."""
    if item.get_closest_marker("e2e") and time.time() > float(os.environ.get("AUTOSCALER_E2E_UNTIL", "inf")):
        pytest.skip("no time is left for it on this machine")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Draw the same examples in every process; run full collections rarely, but measure with Python's own settings."""
    if hasattr(providers, "_get_local_constants"):
        # Hypothesis tries constants of the loaded modules. These grow as tests run, and depend on the order of the
        # files: use only the modules that are loaded after the collection.
        found = providers._get_local_constants()
        providers._get_local_constants = lambda: found
    if session.config.option.markexpr == "benchmark":
        return
    # Thousands of tests, and everything they import, stay until the end. Scanning them in every collection would take a
    # tenth of the time. They are not frozen, because hypothesis asks the collector for references between objects, and
    # the collector does not know those of frozen objects.
    gc.set_threshold(700, 10, 200)


# Tests that one process runs, one after the other, even if there are several processes: they share a Spark session.
TOGETHER = (("tests/history/",),)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Keep the tests of a file in one process (`pytest -n 2`): they share servers."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only with the plug-in

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return next((paths[0] for paths in TOGETHER if nodeid.startswith(paths)), super()._split_scope(nodeid))

    return Scheduling(config, log)
