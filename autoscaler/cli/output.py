"""Exit codes, and printing of lines, tables and JSON."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from autoscaler.ports import AutoscalerError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes of the commands."""

WATCH_INTERVAL = 2.0
"""Seconds between two refreshes of `watch`."""

_STYLE = re.compile(r"\x1b\[[\d;]*m")
WIDTH = 100
"""The width of printed lines, in characters, if no terminal determines it."""

_GAP = 2  # spaces between two columns of a table


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: folded to fit if the output is a terminal, else as wide as necessary."""
    print_lines(*table_lines(head, rows))


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, as `table` prints them."""
    from rich.console import Console  # noqa: PLC0415 - a command that prints no table need not load it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False)
    head = _folded(head, rows, console.width if console.is_terminal else WIDTH)
    widths = _widths(head, rows, console.width) if console.is_terminal else None
    if widths is None:
        console = Console(highlight=False, width=1_000_000)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for number, title in enumerate(head):
        drawn.add_column(title, overflow="fold", min_width=widths[number] if widths else None)
    for row in rows:
        # As Text: names and messages may contain what rich takes for markup.
        drawn.add_row(*(Text(cell) for cell in row))
    with console.capture() as written:
        console.print(drawn)
    return [line.rstrip() for line in written.get().splitlines()]


def _folded(head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Sequence[str]:
    """The titles, broken at their spaces if the table fits into the available width only that way."""
    cells = [max((len(row[number]) for row in rows), default=0) for number in range(len(head))]
    least = [max(1, width, *map(len, title.split())) for title, width in zip(head, cells, strict=True)]
    gaps = _GAP * (len(head) - 1)
    if sum(map(max, map(len, head), cells)) + gaps <= room or sum(least) + gaps > room:
        return head
    return [textwrap.fill(title, width, break_on_hyphens=False) for title, width in zip(head, least, strict=True)]


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """The minimum widths of the columns: of their longest words, or of their titles if the words do not fit.

    None if the titles do not fit either: then whole lines, which the terminal breaks anywhere, read better.
    """
    titles = [max(map(len, title.split("\n"))) for title in head]
    words = [
        max(titles[number], *(len(word) for row in rows for word in row[number].split()), 0)
        for number in range(len(head))
    ]
    gaps = _GAP * (len(head) - 1)
    return next((widths for widths in (words, titles) if sum(widths) + gaps <= room), None)


def hang(label: str, text: str) -> str:
    """A label and a paragraph with a hanging indent."""
    return textwrap.fill(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_long_words=False)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print_lines(json.dumps(value, indent=2))


def log_nothing() -> None:
    """Silence the log, for a command that prints the same problems with their details."""
    for name in ("autoscaler", "kubernetes_asyncio"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def print_lines(*lines: str) -> None:
    """Print lines to the standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def watch(lines: Callable[[], Sequence[str]], pause: Callable[[float], object] = time.sleep) -> None:
    """Show lines repeatedly until Ctrl-C; on a terminal, redraw them in place.

    Args:
        lines: makes the lines. An error of the first call is raised; later errors are shown in place of the lines.
        pause: waits for the given seconds.

    Raises:
        AutoscalerError: the first call of `lines` failed.
    """
    shown = list(lines())
    try:
        while True:
            foot = f"Refreshed every {WATCH_INTERVAL:g} s; Ctrl-C ends this."
            if sys.stdout.isatty():
                size = shutil.get_terminal_size()
                shown = _fitting(shown, size.columns, size.lines - 3)
                # Draw over the old lines and clear only what is left of them: this does not flicker.
                sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in (*shown, "", foot)) + "\x1b[J")
                sys.stdout.flush()
            else:
                print_lines(*shown, "")
            pause(WATCH_INTERVAL)
            try:
                shown = list(lines())
            except AutoscalerError as error:
                shown = [f"autoscaler: {error}"]
    except KeyboardInterrupt:
        return


def _fitting(lines: Sequence[str], columns: int, room: int) -> list[str]:
    """Break lines at the given number of columns, and keep as many as there is room for."""
    broken: list[str] = []
    for line in "\n".join(lines).split("\n"):
        plain = _STYLE.sub("", line)
        broken += [line] if len(plain) <= columns else textwrap.wrap(plain, columns, replace_whitespace=False)
    if len(broken) <= room:
        return broken
    kept = max(room - 1, 0)
    return [*broken[:kept], f"... and {len(broken) - kept} more lines: --filter and --troubled show fewer clusters"]


def print_error(*lines: str) -> None:
    """Print lines to the standard error."""
    sys.stderr.write("\n".join(lines) + "\n")


@contextmanager
def progress(what: str, total: float) -> Iterator[Callable[[float], object]]:
    """Show a progress bar on the standard error, if that is a terminal.

    Yields:
        a function that takes how much of `total` is done.
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal:
        # Not `disable=True`: rich before 13.8 prints an empty line after a disabled bar.
        yield lambda _done: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
