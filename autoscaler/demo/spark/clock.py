"""A file with the time when the load began."""

from __future__ import annotations

import json
import time
from pathlib import Path

from autoscaler.demo.load import Load


class Clock:
    """The load, and when it began. The file is written once; until then nothing is offered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[float, Load] | None = None

    def offered(self) -> int:
        """Records offered until now."""
        if self._known is None:
            try:
                content = json.loads(self._path.read_text())
            except FileNotFoundError:
                return 0
            steps = tuple((at, rate) for at, rate in content["steps"])
            self._known = content["start"], Load(steps, content["duration"])
        start, load = self._known
        return load.offered(time.time() - start)


def start_clock(path: Path, load: Load, start: float) -> None:
    """Let the load begin at this time (seconds since 1970)."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"start": start, "steps": load.steps, "duration": load.duration}))
    temporary.replace(path)
