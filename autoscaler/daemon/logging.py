"""Log lines as text or JSON. What is passed as `extra` becomes fields of the line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from autoscaler.config.model import LogFormat

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What was passed as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the extra fields, and error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ConsoleFormatter(logging.Formatter):
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
        return text


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '"=' for c in text) else text
