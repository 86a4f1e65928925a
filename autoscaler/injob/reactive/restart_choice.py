"""Decide whether a rescale needs a restart, and whether a restart can fix a failure: pure functions of measurements."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoscaler.core.wording import count_of
from autoscaler.injob.report import raised

FAIR = 0.25
"""New executors count as unused if they ran less than this fraction of their even share of the tasks."""

ENOUGH = 2
"""Batches that must run after executors are added before a choice is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a job whose slots have increased.

    Attributes:
        slots: the slots that exist now.
        deployed: the slots that the job was started for.
        takes_parallelism: whether `build` takes the parallelism as an argument. If not, a restart does not change it.
        widest: the tasks of the widest stage of the last batches; 0: not known.
        tried: the value of `widest` at the last restart for more tasks; 0: there was no such restart.
        tasks: the tasks that have ended since the last executor was added.
        batches: the batches that have been committed since the last executor was added.
        share: the fraction of these tasks that ran on executors added since the job's start.
        fair: the fraction of the slots that these executors have.
        held: queries whose stages have as many tasks as their maximum allows, where more slots raise that maximum.
        restart: seconds that the last restart of this job took; None: there was none.
    """

    slots: int
    deployed: int
    takes_parallelism: bool
    widest: int
    tried: int
    tasks: int
    batches: int
    share: float
    fair: float
    held: tuple[str, ...] = ()
    restart: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether to restart, and the reason in one sentence; `restart` is None while too little is known."""

    restart: bool | None
    why: str
    more_tasks: bool = False


def choose(measured: Measured) -> Choice:
    """Decide whether to restart for added slots, or to let the next batch use them.

    A batch uses a new executor without a restart if its stages have more tasks than there were slots. A restart is
    necessary if `build` has set the number of tasks, or if stateful tasks stay on the executors that hold their state
    (`spark.locality.wait`).
    """
    if measured.batches < ENOUGH:
        return Choice(None, f"{measured.batches} of {ENOUGH} batches have run since executors were added")
    costs = "" if measured.restart is None else f"; a restart takes {measured.restart:.0f} s here"
    if measured.held:
        names = ", ".join(measured.held)
        return Choice(True, f"{names} may have more tasks at once: `build` is called with the new maxima{costs}")
    if 0 < measured.widest < measured.slots:
        few = f"a batch has {count_of(measured.widest, 'task')} at most and there are {measured.slots} slots"
        if not measured.takes_parallelism or measured.deployed >= measured.slots:
            return Choice(False, f"{few}: a restart does not change that")
        if measured.widest <= measured.tried:
            return Choice(False, f"{few}: the last restart for that did not change it")
        return Choice(True, f"{few}: `build` is called with the new parallelism{costs}", more_tasks=True)
    if measured.tasks and measured.share < FAIR * measured.fair:
        return Choice(
            True,
            f"executors with {measured.fair:.0%} of the slots had {measured.share:.0%} of the tasks: the state stays "
            f"on the old ones until a restart{costs}",
        )
    return Choice(False, f"{measured.share:.0%} of the tasks run on the new executors: no restart is needed")


_OWN_CODE = {
    "AnalysisException",
    "AttributeError",
    "BuildError",
    "ImportError",
    "IndentationError",
    "ModuleNotFoundError",
    "NameError",
    "ParseException",
    "PySparkAttributeError",
    "PySparkTypeError",
    "PySparkValueError",
    "SyntaxError",
    "TypeError",
}

_OTHER_QUERY = re.compile(
    r"STATE_STORE_(KEY|VALUE)_SCHEMA|STATE_STORE_[A-Z_]*(INCOMPATIBLE|MISMATCH)|STREAMING_STATEFUL_OPERATOR_NOT_MATCH"
    r"|CHECKPOINT_[A-Z_]*MISMATCH|STATE_REPARTITION_INVALID_CHECKPOINT|There are \[\d+\] sources in the checkpoint"
)


MAX_CAUSE = 1000
"""Characters of a cause: the timeline keeps a thousand causes."""


def cause(text: str) -> str:
    """The line of an error's text that states the error, shortened; in Python's case that of the last traceback."""
    text = text.partition("=== Streaming Query ===")[0]
    python = raised(text)
    lines = [python] if python else [line.strip() for line in text.splitlines()]
    said = (line for line in lines if line and not line.startswith(("SQLSTATE", "JVM stacktrace")))
    line = next(said, "no error message")
    return line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 1] + "…"


def is_permanent(error: str, text: str) -> bool:
    """Whether a restart cannot fix a failure: the job's own code is wrong, or the checkpoint belongs to another query.

    Errors raised in a Python worker do not count as permanent: the data, or a system that a function calls, may be
    better later. `error` is the class of the exception raised in the driver, `text` its message with the cause.
    """
    return error in _OWN_CODE or _OTHER_QUERY.search(text) is not None
