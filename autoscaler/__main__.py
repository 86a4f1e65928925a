"""`python -m autoscaler` is the command `autoscaler`."""

import sys

from autoscaler.cli import main

sys.exit(main())
