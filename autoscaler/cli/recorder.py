"""Writing what a simulation did as a daemon writes its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from autoscaler.cli.configuration import wrong
from autoscaler.ports import AutoscalerError, Record
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import name


@contextmanager
def recording(directory: Path) -> Iterator[Callable[[Record], None]]:
    """Open a directory, new or empty, for records; each goes to the file of its hour.

    Yields:
        what to give each record to.

    Raises:
        ConfigurationError: something is in the directory already.
        AutoscalerError: it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise wrong(f"{directory}: is not empty; what another run has recorded would be mixed with this one")
        with ExitStack() as opened:
            files: dict[str, BinaryIO] = {}

            def keep(record: Record) -> None:
                hour = name(record.decision.at)
                if hour not in files:
                    files[hour] = opened.enter_context((directory / hour).open("wb"))
                files[hour].write(dump_record(record) + b"\n")

            yield keep
    except OSError as error:
        raise AutoscalerError(f"{directory}: cannot be written: {error.strerror}") from error
