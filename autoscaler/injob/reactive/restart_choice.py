"""Whether a rescale takes a restart, and whether a failure is worth one: pure functions over what was measured."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoscaler.core.wording import count_of
from autoscaler.injob.report import raised

FAIR = 0.25
"""New executors that have had less than this part of their even share of tasks are taken to be unused."""

ENOUGH = 2
"""Batches after a change of the slots that are looked at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of a job when its slots have increased.

    Attributes:
        slots: that there are.
        deployed: slots that it was started for.
        takes_parallelism: whether `build` takes the parallelism: otherwise a restart does not change it.
        widest: tasks of the widest stage of its last batches; 0: not known.
        tried: what that was when it was last restarted for more tasks; 0: it was not.
        tasks: that have ended since the last executor was added.
        batches: that have been committed since the last executor was added.
        share: the part of the tasks since then that ran on executors added since the start.
        fair: the part of the slots that they have.
        held: queries whose stages have as many tasks as their maximum allows, which is higher with these slots.
        restart: seconds that a restart has taken in this job; None: there was none.
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
    """What is done, and why in one sentence; `restart` is None while too little is known."""

    restart: bool | None
    why: str
    more_tasks: bool = False


def choose(measured: Measured) -> Choice:
    """Whether to restart for slots that were added, or to leave them to the next batch.

    A batch uses a new executor by itself if its stages have more tasks than there were slots. A restart is the only way
    where `build` has set the number of tasks, and where stateful tasks stay on the executors that hold their state
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
"""Characters of a cause: a thousand of them are kept in the timeline."""


def cause(text: str) -> str:
    """The line of an error's text that says what was wrong, shortened: of Python's tracebacks the last one's."""
    text = text.partition("=== Streaming Query ===")[0]
    python = raised(text)
    lines = [python] if python else [line.strip() for line in text.splitlines()]
    said = (line for line in lines if line and not line.startswith(("SQLSTATE", "JVM stacktrace")))
    line = next(said, "no error message")
    return line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 1] + "…"


def is_permanent(error: str, text: str) -> bool:
    """Whether a restart does not fix a failure: it is of the job's own code, or the checkpoint is of another query.

    What is raised in a Python worker is not among it: data or a system that a function asks may be better later. The
    error is the class of what was raised in the driver, the text what it said, with the cause.
    """
    return error in _OWN_CODE or _OTHER_QUERY.search(text) is not None
