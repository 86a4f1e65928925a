"""What the demo shows while it runs: a live table on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY = 5.0
"""Seconds between two lines where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What there is to be seen right now; None where nobody can say.

    Attributes:
        at: seconds since the load began; negative before.
        of: length of the load in seconds.
        phase: what is going on, in a few words.
        rate: records offered per second.
        lag: records offered and not yet processed.
        desired: workers asked for.
        ready: workers that are up.
        thought: the daemon's last decision, in a sentence.
        events: what has happened so far, newest last.
    """

    at: float
    of: float
    phase: str
    rate: float
    lag: int | None
    desired: int | None
    ready: int | None
    thought: str
    events: tuple[str, ...] = ()


class Show:
    """Shows one moment after another."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next = 0.0
        self._told = 0

    def tell(self, moment: Moment) -> None:
        """Show a moment."""
        if self._live is not None:
            self._live.update(table(moment))
            return
        new = moment.events[self._told :]
        self._told = len(moment.events)
        for event in new:
            self._console.print(event, highlight=False, markup=False, soft_wrap=True)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY
            self._console.print(line(moment), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def show(console: Console) -> Iterator[Show]:
    """A live table as long as this lasts if the console is a terminal, else lines."""
    if not console.is_terminal:
        yield Show(console, None)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield Show(console, live)


def line(moment: Moment) -> str:
    """A moment in one line."""
    lag = "?" if moment.lag is None else str(moment.lag)
    return (
        f"{moment.at:5.0f} s  load {moment.rate:4.0f}/s  lag {lag:>5}  workers {_workers(moment)}  "
        f"{moment.phase}: {moment.thought}"
    )


def table(moment: Moment) -> RenderableType:
    """A moment as a table."""
    result = Table(title=f"autoscaler demo: {moment.phase}", title_justify="left", expand=False, min_width=76)
    for name in ("time", "load", "lag", "workers"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("what the daemon thinks", ratio=1, min_width=38)
    lag = "?" if moment.lag is None else str(moment.lag)
    result.add_row(f"{moment.at:.0f} s", f"{moment.rate:.0f}/s", lag, _workers(moment), Text(moment.thought))
    result.add_section()
    for event in moment.events:
        result.add_row("", "", "", "", Text(event))
    whole = Table.grid(padding=(0, 1))
    whole.add_row(result)
    whole.add_row(ProgressBar(total=moment.of, completed=min(max(moment.at, 0.0), moment.of), width=76))
    return whole


def _workers(moment: Moment) -> str:
    if moment.ready is None or moment.desired is None:
        return "?"
    return str(moment.ready) if moment.ready == moment.desired else f"{moment.ready} -> {moment.desired}"
