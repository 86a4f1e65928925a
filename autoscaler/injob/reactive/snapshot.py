"""The public state of a reactive job: immutable values that the job's thread writes and the server's thread reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.schedulers.slots import Bounds


class State(StrEnum):
    """The state of a job: the states of FLIP-160, and Flink's terminal states."""

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
    """The measurement of a query when it last ended a batch or reported that it was idle.

    Attributes:
        age: seconds that the query had run by then.
        busy: seconds of these in which it was fully busy; None: not known.
        busy_share: the busy share of the last seconds; None: not known.
        records: records that it had read; None: not known.
        rate: records per second that it read in the last seconds, or in the last batch; None: not known.
        pending: records that waited to be read; None: not known.
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
        id: 32 hexadecimal digits, the same after each restart: derived from the query's name, or else its position.
        name: the name that its author gave it, or else `query 1` and so on.
        bounds: the minimum and maximum slots.
        parallelism: the slots that it runs on; 0 while it does not run.
        active: whether it runs.
        measures: the measurement of the query's present run; None before its first whole batch has ended.
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
        id: Spark's id of the executor.
        address: host and port.
        slots: tasks that it can run at a time.
        busy: tasks that it runs now.
        done: tasks that have ended on it.
        active: False once Spark has removed it.
        added: when Spark added it, seconds since 1970.
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
        number: the commit's number, counted over all queries from 1.
        query: the id of its query.
        batch: Spark's number of the batch.
        began: when the batch began, seconds since 1970.
        took: the batch's duration in seconds.
        rows: the rows that the batch read.
        state_partitions: the partitions of the query's state; 0: the query is stateless.
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
        at: when it failed, seconds since 1970.
        query: the id of the query; None: `build` failed.
        error: the class of the exception.
        text: the exception's message, with the cause.
    """

    at: float
    query: str | None
    error: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An entry of the timeline: the job entered a state, or decided to stay in it.

    Attributes:
        at: seconds since 1970.
        state: the state from then on.
        why: the reason in one sentence.
        slots: the slots that existed.
        before: the slots that the queries ran on before.
        after: the slots that they run on from then on.
        took: seconds in the previous state.
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
        name: the application's name.
        state: the job's present state.
        now: seconds since 1970.
        entered: when the job last entered each state, seconds since 1970.
        queries: in the order in which `build` started them; empty before the first start.
        executors: present and former executors.
        commits: the last commits, oldest first.
        committed: the number of all commits.
        failures: the last failures, oldest first.
        restarts: the number of restarts after failures and for rescales.
        timeline: oldest first, across restarts of the driver.
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
