"""Settings for all tests."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# The quick profile keeps `make test` short; CI runs the thorough one (HYPOTHESIS_PROFILE=thorough). Both draw the same
# examples each time: a build is red for what was changed. `explore` looks for new ones, by hand.
settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep full collections rare; figures are measured with Python's own settings."""
    if session.config.option.markexpr == "benchmark":
        return
    # Thousands of tests, and all that they import, stay until the end. Looking through them again and again takes a
    # tenth of the time. They are not frozen: hypothesis asks the collector who refers to what, and it tells of those
    # objects only that it collects.
    gc.set_threshold(700, 10, 200)
