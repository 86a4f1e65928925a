"""The build backend: hatchling, once it is known that this Python will do.

pip looks at `requires-python` only after it has chosen the version of every dependency, which takes older ones minutes.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older one runs this too
    sys.exit(f"reactive-autoscaler needs Python 3.11 or newer, and this is {sys.version.split()[0]} ({sys.executable})")

from hatchling.build import *  # noqa: F403 - whatever hooks it has
