"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The quick profile keeps `make test` short; CI runs the thorough one (HYPOTHESIS_PROFILE=thorough).
settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("thorough", max_examples=300, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
