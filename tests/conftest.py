"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The quick profile keeps `make test` short; CI runs the thorough one (HYPOTHESIS_PROFILE=thorough). Both draw the same
# examples each time: a build is red for what was changed. `explore` looks for new ones, by hand.
settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
