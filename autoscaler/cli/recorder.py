"""Write the decisions of a simulation as a daemon writes its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from autoscaler.cli.configuration import wrong
from autoscaler.ports import AutoscalerError, Record
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import file_name


@contextmanager
def recording(directory: Path) -> Iterator[Callable[[Record], None]]:
    """Open a directory, new or empty, for records; each goes to the file of its hour.

    Yields:
        a function that writes a record.

    Raises:
        ConfigurationError: the directory is not empty.
        AutoscalerError: it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise wrong(f"{directory}: is not empty; its records would be mixed with those of this run")
        with ExitStack() as opened:
            files: dict[str, BinaryIO] = {}

            def keep(record: Record) -> None:
                hour = file_name(record.decision.at)
                if hour not in files:
                    files[hour] = opened.enter_context((directory / hour).open("wb"))
                files[hour].write(dump_record(record) + b"\n")

            yield keep
    except OSError as error:
        raise AutoscalerError(f"{directory}: cannot be written: {error.strerror}") from error
