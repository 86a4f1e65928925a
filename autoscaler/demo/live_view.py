"""The live view of the demo: a table on a terminal, or else a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_INTERVAL = 5.0
"""Seconds between two lines if the output is not a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the demo at one time; None means unknown.

    Attributes:
        at: seconds since the load began; negative before.
        duration: the duration of the load in seconds.
        phase: the phase of the demo in a few words.
        rate: records offered per second.
        lag: records offered and not yet processed.
        desired: requested workers.
        ready: workers that are up.
        decision: the daemon's last decision in a sentence.
        events: rescales so far, newest last.
    """

    at: float
    duration: float
    phase: str
    rate: float
    lag: int | None
    desired: int | None
    ready: int | None
    decision: str
    events: tuple[str, ...] = ()


class LiveView:
    """Shows one status after another."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next = 0.0
        self._printed = 0

    def update(self, status: Status) -> None:
        """Show a status."""
        self.show(line(status), table(status), status.events)

    def show(self, text: str, whole: RenderableType, events: Sequence[str]) -> None:
        """Show `whole` on a terminal, or else print new events at once, and `text` every few seconds."""
        if self._live is not None:
            self._live.update(whole)
            return
        new = events[self._printed :]
        self._printed = len(events)
        for event in new:
            self._console.print(event, highlight=False, markup=False, soft_wrap=True)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_INTERVAL
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def live_view(console: Console) -> Iterator[LiveView]:
    """A live table on a terminal, or else lines."""
    if not console.is_terminal:
        yield LiveView(console, None)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield LiveView(console, live)


def line(status: Status) -> str:
    """A status in one line."""
    lag = "?" if status.lag is None else str(status.lag)
    return (
        f"{status.at:5.0f} s  load {status.rate:4.0f}/s  lag {lag:>5}  workers {_workers(status)}  "
        f"{status.phase}: {status.decision}"
    )


def table(status: Status) -> RenderableType:
    """A status as a table."""
    result = Table(title=f"autoscaler demo: {status.phase}", title_justify="left", expand=False, min_width=76)
    for name in ("time", "load", "lag", "workers"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("last decision", ratio=1, min_width=38)
    lag = "?" if status.lag is None else str(status.lag)
    result.add_row(f"{status.at:.0f} s", f"{status.rate:.0f}/s", lag, _workers(status), Text(status.decision))
    result.add_section()
    for event in status.events:
        result.add_row("", "", "", "", Text(event))
    whole = Table.grid(padding=(0, 1))
    whole.add_row(result)
    whole.add_row(ProgressBar(total=status.duration, completed=min(max(status.at, 0.0), status.duration), width=76))
    return whole


def _workers(status: Status) -> str:
    if status.ready is None or status.desired is None:
        return "?"
    return str(status.ready) if status.ready == status.desired else f"{status.ready} -> {status.desired}"
