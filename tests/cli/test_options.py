"""Options that have an old name."""

from __future__ import annotations

import pytest

from autoscaler.cli import _parser


@pytest.mark.parametrize(
    ("command", "old", "present", "value"),
    [
        ("simulate CONFIG --load day", "--one", "--rate-per-worker", "50"),
        ("backtest DATASET CONFIG", "--one", "--rate-per-worker", "50"),
        ("tune DATASET CONFIG", "--one", "--rate-per-worker", "50"),
        ("history import TRACES DATASET", "--again", "--reimport", None),
        ("history follow TRACES DATASET", "--plain", "--uncompressed", None),
    ],
)
def test_an_old_name_works_with_a_warning_that_names_the_new_one(
    command: str, old: str, present: str, value: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    parser = _parser(words[0])
    read = present.lstrip("-").replace("-", "_")
    without = vars(parser.parse_args(words))[read]
    assert not without
    given = [] if value is None else [value]
    stored = vars(parser.parse_args([*words, present, *given]))[read]
    assert stored is True if value is None else stored == 50.0
    assert capsys.readouterr().err == ""
    assert vars(parser.parse_args([*words, old, *given]))[read] == stored
    assert capsys.readouterr().err == f"warning: {old} is now called {present}\n"
