"""The build backend: hatchling, once it is known that this Python will do.

pip looks at `requires-python` only after it has chosen the version of every dependency, which takes older ones minutes.
At the tag in a wheel's name it looks first.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older one runs this too
    sys.exit(f"reactive-autoscaler needs Python 3.11 or newer, and this is {sys.version.split()[0]} ({sys.executable})")

from hatchling.build import *  # noqa: F403 - whatever hooks it has
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class OldestPython(BuildHookInterface):
    """Names the wheel after the oldest Python that it is for."""

    def initialize(self, version, build_data):  # noqa: ANN001, ANN201, D102 - hatchling's
        del version
        build_data["tag"] = "py311-none-any"
