"""What commands print beside their lines."""

from __future__ import annotations

import io

import pytest

from autoscaler.cli import output as terminal
from autoscaler.core.explain import count_of
from autoscaler.simulation.benchmark import COLUMNS


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_nowhere_else(
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


def test_numbers_of_things_agree_with_them() -> None:
    assert [count_of(number, "line") for number in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


def test_the_table_of_the_benchmark_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    row = ("daedalus-oracle", "2.920", "12.98%", "39.04", "5.036", "110", "157", "12.88%", "0.035", "2.55", "2.803")
    terminal.table(("policy", *COLUMNS, "under 1 %"), [(*row, "4 of 4")])
    above, titles, cells = capsys.readouterr().out.splitlines()
    assert max(map(len, (above, titles, cells))) <= 100
    assert titles.split()[:3] == ["policy", "cost", "late"]
    assert tuple(cells.split()[: len(row)]) == row


def test_titles_stay_on_a_line_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table(("two words", "b"), [("1", "2")])
    assert capsys.readouterr().out.splitlines() == ["two words  b", "1          2"]
