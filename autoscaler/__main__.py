"""`python -m autoscaler` is the command `autoscaler`, and `spark-submit .../autoscaler/__main__.py` too."""

import sys
from pathlib import Path

if sys.path[:1] == [str(Path(__file__).parent)]:
    # Started as a script: our modules must not stand in for others of the same names.
    del sys.path[0]

from autoscaler.cli import main

sys.exit(main())
