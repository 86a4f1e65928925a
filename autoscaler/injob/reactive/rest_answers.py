"""The responses of a reactive job's REST API in Flink 2.3's format: pure functions of a snapshot.

A query is shown as a vertex, a commit as a checkpoint, an executor as a TaskManager. All queries share the slots. A
value that Flink measures and Spark does not is 0, or missing if Flink's clients allow that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoscaler.injob.reactive.rest_rescales import UNDEPLOYED, Rescale, identifier, millis, rescales, spans, statistics
from autoscaler.injob.reactive.snapshot import Commit, Executor, Failure, Query, Snapshot, State
from autoscaler.schedulers.flink_durations import seconds
from autoscaler.schedulers.slots import MOST_MAX_PARALLELISM

VERSION, COMMIT = "2.3.0", "pyspark"
STATUS = {
    State.CREATED: "INITIALIZING",
    State.WAITING_FOR_RESOURCES: "CREATED",
    State.CREATING: "CREATED",
    State.EXECUTING: "RUNNING",
    State.RESTARTING: "RESTARTING",
    State.STOPPING: "RUNNING",
    State.CANCELING: "CANCELLING",
    State.FAILING: "FAILING",
    State.FAILED: "FAILED",
    State.FINISHED: "FINISHED",
    State.CANCELED: "CANCELED",
}
"""Flink's JobStatus in each state."""
TERMINAL = frozenset({State.FAILED, State.FINISHED, State.CANCELED})
STATUSES = (*dict.fromkeys(STATUS.values()), "RECONCILING", "SUSPENDED")
TASK_STATES = (
    *("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING"),
    *("FINISHED", "CANCELING", "CANCELED", "FAILED", "RECONCILING"),
)
TASK_STATE = {
    State.RESTARTING: "CANCELED",
    State.CANCELING: "CANCELING",
    State.FAILING: "CANCELING",
    State.FAILED: "FAILED",
    State.FINISHED: "FINISHED",
    State.CANCELED: "CANCELED",
}
SCHEDULER = "jobmanager.adaptive-scheduler."


@dataclass(frozen=True, slots=True)
class Question:
    """A request for information about a job.

    Attributes:
        job: the job's present snapshot.
        ids: the ids in the path, by parameter name.
        query: the query parameters of the URL.
    """

    job: Snapshot
    ids: Mapping[str, str]
    query: Mapping[str, str]


class RequestError(Exception):
    """A request to which the response is an error."""

    def __init__(self, status: int, *errors: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, *errors)
        self.status, self.errors, self.headers = status, errors, headers


def unresolved(kind: str, name: str, value: str) -> str:
    """Flink's error message for a parameter that cannot be parsed."""
    cannot = f'Cannot resolve {kind} parameter ({name}) from value "{value[:80]}".'
    return f"Bad request, could not parse parameters: {cannot}"


# ----------------------------------------------------------------------------------------------------------
# parts of responses


def duration(job: Snapshot, name: str, default: float) -> int:
    """A setting in milliseconds. The default is in seconds."""
    found = seconds(job.settings[name]) if name in job.settings else None
    return millis(default if found is None else found)


def number(job: Snapshot, name: str, default: int) -> int:
    """A setting that is a whole number."""
    found = job.settings.get(name, "").strip()
    return int(found) if re.fullmatch(r"\d{1,9}", found) else default


def max_parallelism(job: Snapshot) -> int:
    """The maximum number of slots that a query may get."""
    return number(job, "pipeline.max-parallelism", MOST_MAX_PARALLELISM) or MOST_MAX_PARALLELISM


def start_time(job: Snapshot) -> int:
    """When the job was created, milliseconds since 1970."""
    return millis(job.entered.get(State.CREATED, job.timeline[0].at if job.timeline else job.now))


def end_time(job: Snapshot) -> int:
    """When the job ended, milliseconds since 1970; -1 if it has not."""
    return millis(job.entered.get(job.state, job.now)) if job.state in TERMINAL else -1


def timestamps(job: Snapshot) -> dict[str, int]:
    """When the job entered each of Flink's states since its last start, milliseconds since 1970; 0 for never."""
    found = dict.fromkeys(STATUSES, 0) | {"INITIALIZING": start_time(job)}
    if job.state in UNDEPLOYED:
        return found
    began = job.entered.get(State.CREATING, 0.0)
    since = {state: at for state, at in job.entered.items() if at >= began}
    since.pop(State.STOPPING, None)
    found |= {STATUS[state]: millis(at) for state, at in since.items() if state not in UNDEPLOYED}
    return found | {"CREATED": millis(began)}


def uptime(job: Snapshot) -> int:
    """How long the job has run since its last start, in milliseconds."""
    since = timestamps(job)["RUNNING"]
    if not since or not (STATUS[job.state] == "RUNNING" or job.state in TERMINAL):
        return 0
    return max(0, (end_time(job) if job.state in TERMINAL else millis(job.now)) - since)


def task_counts(job: Snapshot, query: Query) -> dict[str, int]:
    """The number of a query's subtasks in each state. A query has one subtask for each slot."""
    state = TASK_STATE.get(job.state, "RUNNING" if query.active else "FINISHED")
    if state == "RUNNING" and not query.parallelism:
        state = "SCHEDULED"
    return {name: (name == state and job.state not in UNDEPLOYED) * max(1, query.parallelism) for name in TASK_STATES}


def vertex(job: Snapshot, query: Query) -> dict[str, object]:
    """A query as a vertex."""
    tasks = task_counts(job, query)
    status = next((name for name, count in tasks.items() if count), "CREATED")
    start = timestamps(job)["RUNNING"] if status not in {"CREATED", "SCHEDULED"} else 0
    end = -1 if not start or end_time(job) < 0 else end_time(job)
    read = sum(commit.rows for commit in job.commits if commit.query == query.id and millis(commit.began) >= start > 0)
    measured = {"read-bytes": 0, "write-bytes": 0, "read-records": read, "write-records": 0}
    return {
        "id": query.id,
        "slotSharingGroupId": identifier(job.id, "default"),
        "name": query.name,
        "maxParallelism": max_parallelism(job),
        "parallelism": query.bounds.upper if job.state in UNDEPLOYED else max(1, query.parallelism),
        "status": status,
        "start-time": start or -1,
        "end-time": end,
        "duration": (millis(job.now) if end < 0 else end) - start if start else -1,
        "tasks": tasks,
        "metrics": measured
        | {f"{name}-complete": False for name in measured}
        | {"accumulated-backpressured-time": 0, "accumulated-idle-time": 0, "accumulated-busy-time": 0.0},
    }


def plan(job: Snapshot) -> dict[str, object]:
    """The job's plan: the queries as nodes without edges."""
    if job.state in UNDEPLOYED:
        return {"jid": "", "name": "", "type": "", "nodes": []}
    nodes = [
        {
            "id": query.id,
            "operator": "",
            "parallelism": max(1, query.parallelism),
            "operator_strategy": "",
            "description": query.name,
            "optimizer_properties": {},
        }
        for query in job.queries
    ]
    return {"jid": job.id, "name": job.name, "type": "STREAMING", "nodes": nodes}


def executors(job: Snapshot) -> list[tuple[Executor, int]]:
    """The active executors, each with the number of its slots that the job does not use."""
    present = [executor for executor in job.executors if executor.active]
    running = STATUS[job.state] == "RUNNING"
    left = max((query.parallelism for query in job.queries if query.active), default=0) if running else 0
    free: dict[str, int] = {}
    for executor in sorted(present, key=lambda executor: -executor.busy):
        used = min(left, executor.slots)
        left -= used
        free[executor.id] = executor.slots - used
    return [(executor, free[executor.id]) for executor in present]


def resources(cores: float, memory: int = 0) -> dict[str, object]:
    """Flink's resource profile."""
    kinds = ("taskHeapMemory", "taskOffHeapMemory", "managedMemory", "networkMemory")
    return {"cpuCores": float(cores), **dict.fromkeys(kinds, memory), "extendedResources": {}}


def taskmanager(job: Snapshot, executor: Executor, free: int) -> dict[str, object]:
    """An executor as a TaskManager."""
    port = executor.address.rpartition(":")[2]
    memory = (
        "frameworkHeap taskHeap frameworkOffHeap taskOffHeap networkMemory managedMemory jvmMetaspace jvmOverhead "
        "totalFlinkMemory totalProcessMemory"
    )
    return {
        "id": f"{executor.address}-{executor.id}",
        "path": f"pekko.tcp://flink@{executor.address}/user/rpc/taskmanager_{executor.id}",
        "dataPort": int(port) if re.fullmatch(r"\d{1,5}", port) else -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": millis(job.now),
        "slotsNumber": executor.slots,
        "freeSlots": free,
        "assignedTasks": executor.busy,
        "totalResource": resources(executor.slots),
        "freeResource": resources(free),
        "hardware": {"cpuCores": executor.slots, "physicalMemory": 0, "freeMemory": 0, "managedMemory": 0},
        "memoryConfiguration": dict.fromkeys(memory.split(), 0),
    }


def checkpoint(job: Snapshot, commit: Commit) -> dict[str, object]:
    """A commit as a completed checkpoint."""
    query = next((query for query in job.queries if query.id == commit.query), None)
    subtasks = max(1, query.parallelism) if query else 1
    return {
        "className": "completed",
        "id": commit.number,
        "status": "COMPLETED",
        "is_savepoint": False,
        "savepointFormat": None,
        "trigger_timestamp": millis(commit.began),
        "latest_ack_timestamp": millis(commit.began + commit.took),
        "checkpointed_size": 0,
        "state_size": 0,
        "end_to_end_duration": millis(commit.took),
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": subtasks,
        "num_acknowledged_subtasks": subtasks,
        "checkpoint_type": "CHECKPOINT",
        "tasks": {},
        "external_path": f"{query.name if query else commit.query}/commits/{commit.batch}",
        "discarded": False,
    }


def restored(job: Snapshot) -> dict[str, object] | None:
    """The commit from which the job was last restarted."""
    began = job.entered.get(State.CREATING, 0.0)
    before = [commit for commit in job.commits if commit.began + commit.took <= began]
    if not job.restarts or not before:
        return None
    last = checkpoint(job, before[-1])
    kept = {name: last[name] for name in ("id", "is_savepoint", "external_path")}
    return kept | {"restore_timestamp": millis(began)}


def rescale_line(job: Snapshot, one: Rescale) -> dict[str, object]:
    """A rescale in a list."""
    return {
        "rescaleUuid": identifier(job.id, "rescale", one.began, one.cause),
        "resourceRequirementsUuid": identifier(job.id, "requirements", one.requirements),
        "rescaleAttemptId": one.attempt,
        "vertices": {},
        "slots": {},
        "schedulerStates": [],
        "startTimestampInMillis": millis(one.began),
        "endTimestampInMillis": None if one.ended is None else millis(one.ended),
        "terminalState": one.terminal,
        "triggerCause": one.cause,
        "terminatedReason": one.reason,
    }


def rescale_detail(job: Snapshot, one: Rescale) -> dict[str, object]:
    """A rescale with its phases, and the desired and acquired resources."""
    group = {"slotSharingGroupId": identifier(job.id, "default"), "slotSharingGroupName": "default"}
    pre = next((step.before for step in one.steps if step.state is State.RESTARTING), 0) or None
    post = one.steps[-1].after if one.reason == "SUCCEEDED" else None
    vertices = {
        query.id: {
            "jobVertexId": query.id,
            "jobVertexName": query.name,
            **group,
            "desiredParallelism": query.bounds.upper,
            "sufficientParallelism": query.bounds.lower,
            "preRescaleParallelism": pre and min(pre, query.bounds.upper),
            "postRescaleParallelism": post and min(post, query.bounds.upper),
        }
        for query in job.queries
    }
    slots = {
        **group,
        "requestResourceProfile": resources(-1, -1),
        "desiredSlots": max((query.bounds.upper for query in job.queries), default=0),
        "minimalRequiredSlots": max((query.bounds.lower for query in job.queries), default=0),
        "preRescaleSlots": pre,
        "postRescaleSlots": post,
        "acquiredResourceProfile": resources(1) if post else resources(-1, -1),
    }
    shown = {"vertices": vertices, "slots": {group["slotSharingGroupId"]: slots}}
    return rescale_line(job, one) | shown | {"schedulerStates": spans(job, one)}


def rescale_counts(found: Iterable[Rescale]) -> dict[str, int]:
    """The number of rescales of each outcome."""
    outcomes = [one.terminal for one in found]
    names = {"ignored": "IGNORED", "inProgress": None, "completed": "COMPLETED", "failed": "FAILED"}
    return {name: outcomes.count(outcome) for name, outcome in names.items()}


def overview(question: Question) -> object:
    """The numbers of TaskManagers, slots and jobs of the cluster."""
    job, known = question.job, executors(question.job)
    ended = {name: int(job.state is state) for name, state in (("finished", State.FINISHED), ("failed", State.FAILED))}
    return {
        "taskmanagers": len(known),
        "slots-total": sum(executor.slots for executor, _ in known),
        "slots-available": sum(free for _, free in known),
        "jobs-running": int(job.state not in TERMINAL),
        "jobs-finished": ended["finished"],
        "jobs-cancelled": int(job.state is State.CANCELED),
        "jobs-failed": ended["failed"],
        "flink-version": VERSION,
        "flink-commit": COMMIT,
    }


def config(_: Question) -> object:
    """The configuration that Flink's web interface requests first."""
    return {
        "refresh-interval": 3000,
        "timezone-name": "Coordinated Universal Time",
        "timezone-offset": 0,
        "flink-version": VERSION,
        "flink-revision": f"{COMMIT} @ {VERSION}",
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": True, "web-history": False},
    }


def cluster_config(question: Question) -> object:
    """The settings under Flink's names.

    `high-availability.type` is no type of Flink's: after the loss of the driver, the next driver continues from the
    checkpoint, without a high-availability service.
    """
    kept = {"jobmanager.scheduler": "adaptive", "high-availability.type": "checkpoint"}
    settings = kept | dict(question.job.settings)
    return [{"key": key, "value": value} for key, value in settings.items()]


def jobs(question: Question) -> object:
    """The list of jobs, which has one job."""
    return {"jobs": [{"id": question.job.id, "status": STATUS[question.job.state]}]}


def _line(job: Snapshot) -> dict[str, object]:
    """The fields of a job that both the list and the details show."""
    end = end_time(job)
    return {
        "jid": job.id,
        "name": job.name,
        "schedulerType": "Adaptive",
        "start-time": start_time(job),
        "end-time": end,
        "duration": (millis(job.now) if end < 0 else end) - start_time(job),
        "state": STATUS[job.state],
        "pending-operators": 0,
    }


def jobs_overview(question: Question) -> object:
    """The list of jobs with details, which has one job."""
    job = question.job
    counts = [task_counts(job, query) for query in job.queries]
    tasks = {name.lower(): sum(count[name] for count in counts) for name in TASK_STATES}
    modified = job.state not in UNDEPLOYED and max(job.entered.values(), default=0.0)
    more = {"jobType": "STREAMING", "last-modification": millis(modified)}
    return {"jobs": [_line(job) | more | {"tasks": tasks | {"total": sum(tasks.values())}}]}


def job_details(question: Question) -> object:
    """The job with its vertices."""
    job = question.job
    vertices = [vertex(job, query) for query in job.queries]
    return _line(job) | {
        "application-id": None if job.state in UNDEPLOYED else identifier(job.id, "application"),
        "isStoppable": False,
        "job-type": "STREAMING",
        "maxParallelism": number(job, "pipeline.max-parallelism", 0) or -1,
        "now": millis(job.now),
        "timestamps": timestamps(job),
        "vertices": vertices,
        "status-counts": {name: sum(one["status"] == name for one in vertices) for name in TASK_STATES},
        "plan": plan(job),
    }


def job_status(question: Question) -> object:
    """The job's state."""
    return {"status": STATUS[question.job.state]}


def job_config(question: Question) -> object:
    """The job's execution configuration."""
    execution = {
        "restart-strategy": "Cluster level default restart strategy",
        "job-parallelism": max((query.parallelism for query in question.job.queries), default=0) or 1,
        "object-reuse-mode": False,
        "user-config": {},
    }
    return {"jid": question.job.id, "name": question.job.name, "execution-config": execution}


def checkpoints(question: Question) -> object:
    """The counts of commits, and the last commits, newest first."""
    job = question.job
    durations = statistics([millis(commit.took) for commit in job.commits])
    sizes = ("checkpointed_size", "state_size", "alignment_buffered", "processed_data", "persisted_data")
    history = [checkpoint(job, commit) for commit in reversed(job.commits)]
    counts = {"total": job.committed, "in_progress": 0, "completed": job.committed, "failed": 0}
    return {
        "counts": {"restored": job.restarts if job.committed else 0, **counts},
        "summary": {name: statistics([0] * len(job.commits)) for name in sizes} | {"end_to_end_duration": durations},
        "latest": {
            "completed": history[0] if history else None,
            "savepoint": None,
            "failed": None,
            "restored": restored(job),
        },
        "history": history[: number(job, "web.checkpoints.history", 10)],
    }


def checkpoint_config(question: Question) -> object:
    """The checkpoint configuration. Without a setting, the interval is the mean time from one commit to the next."""
    job = question.job
    began = [commit.began for commit in job.commits]
    mean = (began[-1] - began[0]) / (len(began) - 1) if len(began) > 1 else 1.0
    return {
        "mode": "exactly_once",
        "interval": max(1, duration(job, "execution.checkpointing.interval", max(0.0, mean))),
        "timeout": duration(job, "execution.checkpointing.timeout", 600.0),
        "min_pause": 0,
        "max_concurrent": 1,
        "externalization": {"enabled": True, "delete_on_cancellation": False},
        "state_backend": "SparkStateStore",
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": 0,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 600000,
        "changelog_storage": "memory",
    }


def exceptions(question: Question) -> object:
    """The last failures, newest first."""
    most = question.query.get("maxExceptions", "20")
    if not re.fullmatch(r"\d{1,9}", most):
        raise RequestError(400, unresolved("query", "maxExceptions", most) + " Expected a whole number.")
    names = {query.id: query.name for query in question.job.queries}

    def entry(failure: Failure) -> dict[str, object]:
        return {
            "exceptionName": failure.error,
            "stacktrace": f"{failure.error}: {failure.text}",
            "timestamp": millis(failure.at),
            "failureLabels": {},
            **({"taskName": names.get(failure.query, failure.query)} if failure.query else {}),
            "concurrentExceptions": [],
        }

    entries = [entry(failure) for failure in reversed(question.job.failures)]
    return {"exceptionHistory": {"entries": entries[: int(most)], "truncated": len(entries) > int(most)}}


def rescales_overview(question: Question) -> object:
    """The number of rescales of each outcome, and the last rescale of each."""
    found = rescales(question.job)
    outcomes = ("completed", "failed", "ignored")
    last = {one.terminal: rescale_line(question.job, one) for one in found}
    return {
        "rescalesCounts": rescale_counts(found),
        "latest": {outcome: last.get(outcome.upper()) for outcome in outcomes},
    }


def rescales_timeline(question: Question) -> object:
    """The overview, and the timeline with the reason for each state. Flink has no such path."""
    timeline = [
        {
            "timestampInMillis": millis(step.at),
            "state": step.state.value,
            "why": step.why,
            "slots": step.slots,
            "preRescaleSlots": step.before,
            "postRescaleSlots": step.after,
            "previousStateDurationInMillis": millis(step.took),
        }
        for step in question.job.timeline
    ]
    return {**dict(rescales_overview(question)), "timeline": timeline}  # type: ignore[call-overload]


def rescales_history(question: Question) -> object:
    """The last rescales, newest first."""
    kept = rescales(question.job)[::-1][: _history_size(question.job)]
    return [rescale_line(question.job, one) for one in kept]


def rescales_summary(question: Question) -> object:
    """Statistics of the rescales' durations."""
    found = rescales(question.job)

    def took(*outcomes: str) -> dict[str, object]:
        ended = [one for one in found if one.ended is not None and (not outcomes or one.terminal in outcomes)]
        return statistics([millis(one.ended or 0.0) - millis(one.began) for one in ended])

    return {
        "rescalesCounts": rescale_counts(found),
        "rescalesDurationStatsInMillis": took(),
        "completedRescalesDurationStatsInMillis": took("COMPLETED"),
        "ignoredRescalesDurationStatsInMillis": took("IGNORED"),
        "failedRescalesDurationStatsInMillis": took("FAILED"),
    }


def rescale_details(question: Question) -> object:
    """One rescale."""
    for one in rescales(question.job):
        if rescale_line(question.job, one)["rescaleUuid"] == question.ids["rescale"]:
            return rescale_detail(question.job, one)
    raise RequestError(
        404,
        f"Could not find rescale details of specified rescaleUuid {question.ids['rescale']}. "
        f"GET /jobs/{question.job.id}/rescales/history shows those that are known.",
    )


def rescales_config(question: Question) -> object:
    """The settings of the scheduler; times in milliseconds."""
    job = question.job
    return {
        "rescaleHistoryMax": _history_size(job),
        "schedulerExecutionMode": job.settings.get("scheduler-mode", "").strip().upper() or None,
        "submissionResourceWaitTimeoutInMillis": duration(job, SCHEDULER + "submission.resource-wait-timeout", 300.0),
        "submissionResourceStabilizationTimeoutInMillis": duration(
            job, SCHEDULER + "submission.resource-stabilization-timeout", 10.0
        ),
        "slotIdleTimeoutInMillis": duration(job, "slot.idle.timeout", 50.0),
        "executingCooldownTimeoutInMillis": duration(job, SCHEDULER + "executing.cooldown-after-rescaling", 30.0),
        "executingResourceStabilizationTimeoutInMillis": duration(
            job, SCHEDULER + "executing.resource-stabilization-timeout", 60.0
        ),
        "maximumDelayForTriggeringRescaleInMillis": duration(job, SCHEDULER + "rescale-trigger.max-delay", 0.0),
        "rescaleOnFailedCheckpointCount": number(job, SCHEDULER + "rescale-trigger.max-checkpoint-failures", 2),
    }


def _history_size(job: Snapshot) -> int:
    return number(job, "web.adaptive-scheduler.rescale-history.size", 50)


def taskmanagers(question: Question) -> object:
    """The active executors."""
    known = executors(question.job)
    return {"taskmanagers": [taskmanager(question.job, executor, free) for executor, free in known]}


def job_metrics(question: Question) -> object:
    """Names of the job's metrics, or their values."""
    job = question.job
    if question.ids["job"] != job.id:
        return []
    last = job.commits[-1] if job.commits else None
    found = {
        "downtime": 0,
        "lastCheckpointCompletedTimestamp": millis(last.began + last.took) if last else -1,
        "lastCheckpointDuration": millis(last.took) if last else -1,
        "lastCompletedCheckpointId": last.number if last else -1,
        "numRescales": sum(one.reason == "SUCCEEDED" for one in rescales(job)[1:]),
        "numRestarts": job.restarts,
        "numberOfCompletedCheckpoints": job.committed,
        "numberOfFailedCheckpoints": 0,
        "numberOfInProgressCheckpoints": 0,
        "runningTime": uptime(job),
        "totalNumberOfCheckpoints": job.committed,
        "uptime": uptime(job),
    }
    if "get" not in question.query:
        return [{"id": name} for name in found]
    wanted = question.query["get"].split(",")
    return [{"id": name, "value": str(value)} for name, value in found.items() if name in wanted]


def requirements(question: Question) -> object:
    """The bounds of each vertex."""
    return {
        query.id: {"parallelism": {"lowerBound": query.bounds.lower, "upperBound": query.bounds.upper}}
        for query in question.job.queries
    }
