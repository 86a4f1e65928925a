"""Log lines as text or JSON. The keys of `extra` become fields of the line."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from autoscaler.config.model import LogFormat
from autoscaler.core.foreign import format_exception, mask

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CHAIN = 10  # most chained exceptions of a traceback


def setup(log: LogFormat, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (stderr) in the given format, replacing the setup of an earlier call."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log is LogFormat.JSON else ConsoleFormatter())
    handler.set_name("autoscaler")
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == "autoscaler"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("autoscaler").setLevel(logging.INFO)


class _Formatter(logging.Formatter):
    """Shows the whole traceback of an exception, but only the beginning of a long exception text."""

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802 - as in the base class
        """The tracebacks of an exception and of the exceptions it was raised from."""
        error: BaseException | None = ei[1]
        parts: list[str] = []
        while error is not None and len(parts) < _CHAIN:
            stack = "".join(traceback.format_tb(error.__traceback__))
            parts.append(f"Traceback (most recent call last):\n{stack}{format_exception(error)}")
            if isinstance(error, BaseExceptionGroup):
                parts += map(self._member, error.exceptions[:_CHAIN])
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\nraised from:\n\n".join(parts)

    def _member(self, error: BaseException) -> str:
        return "Member of the group: " + self.formatException((type(error), error, error.__traceback__))


def fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields that were passed as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _OWN}


class JsonFormatter(_Formatter):
    """One JSON object per line: time, level, logger, message, the extra fields, and error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        text = {"message": record.getMessage(), **fields(record)}
        if record.exc_info:
            text["traceback"] = self.formatException(record.exc_info)
        # Mask each value, not the whole line: masking must not alter JSON escapes or the time.
        line.update((key, _masked(value)) for key, value in text.items())
        return json.dumps(line)


def _masked(value: object) -> object:
    match value:
        case dict():
            return {mask(str(key)): _masked(part) for key, part in value.items()}
        case list() | tuple():
            return [_masked(part) for part in value]
        case None | bool() | int() | float():
            return value
    return mask(str(value))


class ConsoleFormatter(_Formatter):
    """Time in UTC, level, message, then the extra fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        text = f"{time} {record.levelname.lower():7} {record.getMessage()}"
        extra = " ".join(f"{key}={_quoted(value)}" for key, value in fields(record).items())
        if extra:
            text += f"  {extra}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return mask(text)


def _quoted(value: object) -> str:
    text = str(value)
    # Names come from outside: escape sequences must not reach a terminal.
    return json.dumps(text) if not text.isprintable() or not text or any(c in ' "=' for c in text) else text
