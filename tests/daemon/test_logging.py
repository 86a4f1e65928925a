"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.config.model import LogFormat
from autoscaler.core import foreign
from autoscaler.core.model import Reason
from autoscaler.daemon import logging as lines
from autoscaler.daemon.logging import setup


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("autoscaler")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def now(text: str) -> bool:
    """Whether a time is the present one, with date and zone: people compare logs across days and machines."""
    time = datetime.fromisoformat(text)
    return time.utcoffset() == timedelta(0) and abs(datetime.now(UTC) - time) < timedelta(minutes=1)  # noqa: TID251


def written(log: LogFormat) -> list[str]:
    stream = io.StringIO()
    setup(LogFormat.CONSOLE, io.StringIO())
    setup(log, stream)
    logger = logging.getLogger("autoscaler.daemon.test")
    logger.info("rescale", extra={"cluster": "a", "before": 1, "reason": Reason.ABOVE, "error": 'it "broke" = bad'})
    logger.debug("too much")
    logging.getLogger("somebody.else").info("too much")
    try:
        raise ValueError("why")  # noqa: TRY301 - only to have a traceback
    except ValueError:
        logger.exception("failed")
    return stream.getvalue().splitlines()


def test_json_lines_have_the_extra_fields() -> None:
    lines = [json.loads(line) for line in written(LogFormat.JSON)]
    assert len(lines) == 2
    assert now(lines[0].pop("time"))
    assert lines[0] == {
        "level": "info",
        "logger": "autoscaler.daemon.test",
        "message": "rescale",
        "cluster": "a",
        "before": 1,
        "reason": "above",
        "error": 'it "broke" = bad',
    }
    assert "ValueError: why" in lines[1]["traceback"]


def test_console_lines_are_readable_for_people() -> None:
    first, *rest = written(LogFormat.CONSOLE)
    time, _, rest_of_first = first.partition(" ")
    assert now(time)
    assert rest_of_first == r'info    rescale  cluster=a before=1 reason=above error="it \"broke\" = bad"'
    assert rest[-1] == "ValueError: why"


def test_console_lines_contain_no_foreign_escape_sequences() -> None:
    stream = io.StringIO()
    setup(LogFormat.CONSOLE, stream)
    logging.getLogger("autoscaler.daemon.test").warning("refused", extra={"member": "a\x1b[2J", "other": "\u00e9"})
    assert stream.getvalue().endswith('refused  member="a\\u001b[2J" other=\u00e9\n')


def test_lines_go_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    setup(LogFormat.CONSOLE)
    logging.getLogger("autoscaler.daemon.test").warning("look")
    assert "look" in capsys.readouterr().err
    assert sys.stderr is not None


def test_an_exception_group_is_logged_with_its_members() -> None:
    stream = io.StringIO()
    setup(LogFormat.CONSOLE, stream)
    group = ExceptionGroup("two failed", [ValueError("first"), ExceptionGroup("more", [KeyError("second")])])
    logging.getLogger("autoscaler.daemon.test").error("failed", exc_info=group)
    text = stream.getvalue()
    assert "two failed (2 sub-exceptions)" in text
    assert "Member of the group: Traceback" in text
    assert "ValueError: first" in text
    assert "KeyError: 'second'" in text


def test_masking_a_secret_does_not_change_the_fields_that_machines_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hide = foreign.Mask()
    hide.hide("info", "autoscaler.daemon.test", f"{datetime.now(UTC):%Y-}")  # noqa: TID251 - as logging does
    monkeypatch.setattr(lines, "mask", hide)
    stream = io.StringIO()
    setup(LogFormat.JSON, stream)
    logging.getLogger("autoscaler.daemon.test").info("some info", extra={"about": {"info": ["info"]}})
    line = json.loads(stream.getvalue())
    assert now(line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "autoscaler.daemon.test",
        "message": "some ***",
        "about": {"***": ["***"]},
    }
