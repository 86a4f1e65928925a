"""`autoscaler run` with clocks that are ahead: python shifted.py SECONDS run CONFIG."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

from autoscaler.daemon import observer

ahead = float(sys.argv[1])
real = time.time


def later() -> datetime:
    """The time that this copy uses."""
    return datetime.fromtimestamp(real(), UTC) + timedelta(seconds=ahead)


# Before the import of the modules that import these by name.
time.time = lambda: real() + ahead
observer.utc_now = later

from autoscaler.cli import main  # noqa: E402

sys.exit(main(sys.argv[2:]))
