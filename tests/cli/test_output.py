"""Output of commands besides their results."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from autoscaler.cli import output as terminal
from autoscaler.core.wording import count_of
from autoscaler.ports import AutoscalerError
from autoscaler.simulation.benchmark import COLUMNS


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal.progress("counting", 2) as advanced:
        advanced(1)
        advanced(2)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    screen = _Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with terminal.progress("counting", 2) as advanced:
        advanced(2)
    assert "counting" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_nouns_agree_with_their_numbers() -> None:
    assert [count_of(number, "line") for number in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


class _Pauses:
    """Counts the pauses; Ctrl-C ends the last one."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, seconds: float) -> None:
        assert seconds == terminal.WATCH_INTERVAL
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def _frames(*frames: list[str] | AutoscalerError) -> Callable[[], list[str]]:
    left = iter(frames)

    def frame() -> list[str]:
        found = next(left)
        if isinstance(found, AutoscalerError):
            raise found
        return found

    return frame


def test_watched_output_is_repeated_and_survives_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.watch(_frames(["one"], AutoscalerError("no daemon answers"), ["two", "lines"]), _Pauses(3))
    assert capsys.readouterr() == ("one\n\nautoscaler: no daemon answers\n\ntwo\nlines\n\n", "")
    with pytest.raises(AutoscalerError, match="from the start"):
        terminal.watch(_frames(AutoscalerError("from the start")), _Pauses(1))


def test_watched_output_on_a_terminal_is_drawn_in_place_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "7")
    head = "\x1b[1mcluster\x1b[0m"
    terminal.watch(_frames([head, "a", "\na: " + "word " * 20], [head, *map(str, range(9))]), _Pauses(2))
    first, second = screen.getvalue().removeprefix("\x1b[H").split("\x1b[H")
    foot = ["", "Refreshed every 2 s; Ctrl-C ends this."]
    assert first.removesuffix("\x1b[J").split("\x1b[K\n") == [
        *(head, "a", "", "... and 2 more lines: --filter and --troubled show fewer clusters"),
        *(*foot, ""),
    ]
    assert second.split("\x1b[K\n")[3] == "... and 7 more lines: --filter and --troubled show fewer clusters"
    screen = _Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("LINES", "40")
    terminal.watch(_frames([head, "\na: " + "word " * 20]), _Pauses(1))
    lines = screen.getvalue().removeprefix("\x1b[H").removesuffix("\x1b[J").split("\x1b[K\n")
    assert [line.strip() for line in lines] == [
        *(head, "", "a: " + "word " * 10 + "word", "word " * 8 + "word"),
        *(*foot, ""),
    ]


def test_the_table_of_the_benchmark_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    row = ("daedalus-oracle", "2.920", "12.98%", "39.04", "5.036", "110", "157", "12.88%", "0.035", "2.55", "2.803")
    terminal.table(("policy", *COLUMNS, "under 1 %"), [(*row, "4 of 4")])
    above, titles, cells = capsys.readouterr().out.splitlines()
    assert max(map(len, (above, titles, cells))) <= 100
    assert titles.split()[:3] == ["policy", "cost", "late"]
    assert tuple(cells.split()[: len(row)]) == row


def test_titles_stay_on_one_line_if_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table(("two words", "b"), [("1", "2")])
    assert capsys.readouterr().out.splitlines() == ["two words  b", "1          2"]
