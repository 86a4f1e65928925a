"""What a reactive job shows of itself: plain values, made by the job's own thread and read by the server's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.schedulers.slots import Bounds


class State(StrEnum):
    """Where a job is: FLIP-160's states, and how Flink ends a job."""

    CREATED = "created"
    WAITING_FOR_RESOURCES = "waiting for resources"
    CREATING = "creating"
    """`build` runs."""
    EXECUTING = "executing"
    RESTARTING = "restarting"
    STOPPING = "stopping with a last commit"
    CANCELING = "canceling"
    FAILING = "failing"
    FAILED = "failed"
    FINISHED = "finished"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What the progress of a query says of it, as it was when it last ended a batch or had nothing to do.

    Attributes:
        age: seconds that it had run by then.
        busy: seconds of these that it was busy with all the work it could take; None: not known.
        busy_share: the same as a share of the last seconds; None: not known.
        records: that it had read; None: not known.
        rate: records per second that it read in the last seconds, or one batch; None: not known.
        pending: records that waited; None: not known.
        written: rows that its sink had counted; None: not known.
        idle: seconds since it had last read a record.
        watermark: seconds since 1970; None: it has none.
    """

    age: float
    busy: float | None
    busy_share: float | None = None
    records: int | None = None
    rate: float | None = None
    pending: float | None = None
    written: int | None = None
    idle: float = 0.0
    watermark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A streaming query of the job: what Flink calls a vertex.

    Attributes:
        id: 32 hexadecimal digits, the same after each restart: of its name, or of its place.
        name: as the author called it, else `query 1` and so on.
        bounds: slots that it needs, and that it may take.
        parallelism: slots that it runs on; 0 while it does not run.
        active: whether it runs.
        measures: what is measured of this run of it; None: nothing yet, since no whole batch has ended.
    """

    id: str
    name: str
    bounds: Bounds
    parallelism: int = 0
    active: bool = False
    measures: Measures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """An executor: a worker's slots.

    Attributes:
        id: Spark's id of it.
        address: host and port.
        slots: tasks that it can run at a time.
        busy: tasks that it runs.
        done: tasks that have ended on it.
        active: False once Spark has removed it.
        added: when it came, seconds since 1970.
        removed: when Spark removed it, seconds since 1970, or None.
    """

    id: str
    address: str
    slots: int
    busy: int = 0
    done: int = 0
    active: bool = True
    added: float = 0.0
    removed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A batch that was committed: what Flink calls a completed checkpoint.

    Attributes:
        number: counted over all queries, from 1.
        query: the id of its query.
        batch: Spark's number of the batch.
        began: when it began, seconds since 1970.
        took: seconds.
        rows: that it read.
        state_partitions: of the state that it has; 0: it has none.
    """

    number: int
    query: str
    batch: int
    began: float
    took: float
    rows: int
    state_partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a query or `build` failed.

    Attributes:
        at: when, seconds since 1970.
        query: the id of the query, or None.
        error: the class of what was raised.
        text: what it said, with the cause.
    """

    at: float
    query: str | None
    error: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An entry of the timeline: a state was entered, or it was decided to stay in it.

    Attributes:
        at: when, seconds since 1970.
        state: the state from then on.
        why: one sentence.
        slots: that there were.
        before: slots that the queries ran on before.
        after: slots that they are to run on.
        took: seconds in the state before.
    """

    at: float
    state: State
    why: str
    slots: int
    before: int
    after: int
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A job at one moment.

    Attributes:
        id: 32 hexadecimal digits.
        name: the application's.
        state: where it is.
        now: seconds since 1970.
        entered: when each state was last entered, seconds since 1970.
        queries: in the order in which `build` started them; before the first start none.
        executors: that are or were there.
        commits: the last ones, oldest first.
        committed: how many there were.
        failures: the last ones, oldest first.
        restarts: after failures and for rescales.
        timeline: oldest first; across restarts of the driver.
        settings: Flink's names and their values, as text.
    """

    id: str
    name: str
    state: State
    now: float
    entered: Mapping[State, float] = field(default_factory=dict)
    queries: tuple[Query, ...] = ()
    executors: tuple[Executor, ...] = ()
    commits: tuple[Commit, ...] = ()
    committed: int = 0
    failures: tuple[Failure, ...] = ()
    restarts: int = 0
    timeline: tuple[Step, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
