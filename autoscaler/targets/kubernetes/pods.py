"""Pods of a target: why they do not become ready, and which ones Kubernetes deletes first."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from autoscaler.clients.kubernetes import EVENTS, PODS, Api, Json, Request
from autoscaler.clients.shared_requests import one_line
from autoscaler.core.wording import count_of
from autoscaler.ports import Worker

COST = "controller.kubernetes.io/pod-deletion-cost"
SHOWN = 200  # the most characters of a message from Kubernetes that a remark quotes
PAGE_SIZE = 1000  # pods in one answer
MAX_EVENTS = 1000  # of one object; more than enough, because Kubernetes merges equal Events
CONCURRENT_PATCHES = 10

_CRASHES = frozenset({"CrashLoopBackOff", "RunContainerError", "CreateContainerError", "CreateContainerConfigError"})
_IMAGES = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})


def selector_string(selector: Json) -> str:
    """A label selector (`matchLabels`, `matchExpressions`) as a query parameter."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for rule in selector.get("matchExpressions") or ():
        key, values = rule["key"], ",".join(rule.get("values") or ())
        match rule["operator"]:
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
    return ",".join(parts)


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready and not being deleted."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in _conditions(pod))


def keep_pod(pod: Json) -> Json:
    """Reduce a pod to the fields needed to count it."""
    metadata = pod["metadata"]
    names = ("name", "namespace", "resourceVersion", "deletionTimestamp")
    return {
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "status": {"conditions": [c for c in _conditions(pod) if c.get("type") == "Ready"]},
    }


async def pods_of(api: Api, namespace: str, selector: str) -> list[Json]:
    """The pods that a selector matches. Raises EdgeError."""
    found: list[Json] = []
    following = ""
    while True:
        query = {"labelSelector": selector, "limit": PAGE_SIZE, **({"continue": following} if following else {})}
        answer = await api.call(Request("list", PODS, namespace), query)
        found += answer.get("items") or ()
        following = (answer.get("metadata") or {}).get("continue") or ""
        if not following:
            return found


def not_ready_reasons(pods: Iterable[Json]) -> list[str]:
    """Why pods do not become ready: one sentence per reason, most frequent first. Starting pods have no reason."""
    reasons = Counter(reason for pod in pods if not is_ready(pod) if (reason := _reason(pod)) is not None)
    return [f"{count_of(count, 'pod')} {state}: {message}" for (state, message), count in reasons.most_common()]


def _reason(pod: Json) -> tuple[str, str] | None:
    """State and message of a failing pod, without pod names, so that several pods with the same problem have one."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        why = waiting.get("reason", "")
        if why in _IMAGES:
            why = "ImagePullBackOff" if why == "ErrImagePull" else why  # a pod alternates between the two
            return "cannot get the image", f"{container.get('image', '?')} ({why})"
        if why in _CRASHES:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            code = f", last exit code {ended['exitCode']}" if "exitCode" in ended else ""
            what = f", {ended['reason']}" if ended.get("reason") not in {None, "Error"} else ""
            return "cannot run", f"container {container.get('name', '?')} is in {why}{code}{what}"
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return "pending", one_line(condition.get("message") or condition.get("reason") or "not scheduled", SHOWN)
    if status.get("phase") == "Failed":
        return "failed", one_line(status.get("message") or status.get("reason") or "no reason given", SHOWN)
    return None


def not_created(found: Json) -> str | None:
    """Why a Deployment or ReplicaSet cannot create pods (quota, a webhook), from its conditions."""
    for condition in _conditions(found):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return (
                f"pods are not created: {_without_pod_name(str(condition.get('message', condition.get('reason', ''))))}"
            )
    return None


async def failed_create(api: Api, namespace: str, name: str, kind: str, pods: Iterable[Json]) -> str | None:
    """Why a StatefulSet or custom resource cannot create pods, from its Events; None if a pod was created afterwards.

    For a StatefulSet, a new pod with a lower number than the failed one does not count: the StatefulSet recreates
    evicted pods while a quota still forbids pods with higher numbers.

    Raises:
        EdgeError: the events cannot be read.
    """
    fields = f"involvedObject.kind={kind},involvedObject.name={name},reason=FailedCreate"
    answer = await api.call(Request("list", EVENTS, namespace), {"fieldSelector": fields, "limit": MAX_EVENTS})
    events = sorted(answer.get("items") or (), key=_last_time)
    if not events:
        return None
    last, message = _last_time(events[-1]), str(events[-1].get("message", ""))
    failed = re.search(rf"\bPod {re.escape(name)}-(\d+)\b", message) if kind == "StatefulSet" else None
    lowest = int(failed[1]) if failed else 0
    for pod in pods:
        number = pod["metadata"]["name"].removeprefix(f"{name}-")
        if _time(pod["metadata"].get("creationTimestamp")) > last and not (number.isdecimal() and int(number) < lowest):
            return None
    # Show the time: after the cause is gone, the controller may take up to a quarter of an hour to try again.
    return f"pods are not created: {_without_pod_name(message)} (at {last[11:16]} UTC)"


def _last_time(event: Json) -> str:
    return _time(event.get("lastTimestamp") or event.get("eventTime"))


def _time(written: object) -> str:
    """A time from Kubernetes, always UTC, in a form that sorts correctly with and without microseconds."""
    return str(written or "").removesuffix("Z")


def _without_pod_name(message: str) -> str:
    """The message without its first part, which has the pod's random name."""
    return one_line(re.sub(r"^.*?\bpods \"[^\"]*\" is forbidden: ", "", " ".join(message.split())), SHOWN)


def _conditions(found: Json) -> Sequence[Any]:
    return (found.get("status") or {}).get("conditions") or ()


async def mark_cheapest(api: Api, pods: Sequence[Json], workers: Sequence[Worker], surplus: int) -> str | None:
    """Set the pod-deletion-cost so that Kubernetes first deletes the pods whose workers cost least.

    A ReplicaSet deletes pods that are not ready first, then the pods with the lowest cost. A pod without the annotation
    has cost 0. The pods to delete get costs below 0, the cheapest pod the lowest. Annotations from an earlier change
    are removed.

    Args:
        api: the API server.
        pods: all pods of the target.
        workers: the engine's workers.
        surplus: how many pods will be deleted.

    Returns:
        A remark that says why Kubernetes has to choose; None if the pods are marked.

    Raises:
        EdgeError: a pod could not be marked. Other pods may be marked.
    """
    staying = [pod for pod in pods if _counts(pod)]
    costs = {id(pod): worker.cost for pod in staying for worker in workers if is_worker(pod, worker)}
    if not costs:
        return "no pod is one of the engine's workers (compared by address and name), so Kubernetes chooses"
    # Pods that are not workers yet, or no longer, are the cheapest: their loss costs the engine nothing.
    ranked = sorted(staying, key=lambda pod: (costs.get(id(pod), -1.0), str(pod["metadata"]["name"])))
    wanted = {id(pod): rank - surplus for rank, pod in enumerate(ranked[:surplus])}
    changes: list[tuple[Json, str | None]] = []
    for pod in staying:
        has = (pod["metadata"].get("annotations") or {}).get(COST)
        wants = str(wanted[id(pod)]) if id(pod) in wanted else None
        ours = has is not None and has.startswith("-")
        if has != wants and (wants is not None or ours):
            changes.append((pod, wants))
    limit = asyncio.Semaphore(CONCURRENT_PATCHES)

    async def mark(pod: Json, cost: str | None) -> None:
        metadata = pod["metadata"]
        async with limit:
            request = Request("patch", PODS, metadata["namespace"], metadata["name"])
            await api.call(request, body={"metadata": {"annotations": {COST: cost}}})

    for result in await asyncio.gather(*(mark(pod, cost) for pod, cost in changes), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
    return None


def _counts(pod: Json) -> bool:
    """Whether a ReplicaSet counts a pod. Evicted and ended pods do not count; they may stay for days."""
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" not in pod["metadata"] and phase not in {"Failed", "Succeeded"}


def is_worker(pod: Json, worker: Worker) -> bool:
    """Whether an engine's worker runs in a pod."""
    # Also compare the first label of a host name, which is the pod's name or its address, whatever the domain.
    return bool({*worker.hosts, *(host.partition(".")[0] for host in worker.hosts)} & names_of(pod))


def names_of(pod: Json) -> frozenset[str]:
    """Every name and address that an engine may report for a pod."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    name, namespace = metadata["name"], metadata.get("namespace", "")
    addresses = {status.get("podIP"), *(ip.get("ip") for ip in status.get("podIPs") or ())} - {None}
    names = {name, spec.get("hostname") or name}
    if spec.get("subdomain"):
        host = f"{spec.get('hostname') or name}.{spec['subdomain']}"
        names |= {host, f"{host}.{namespace}", f"{host}.{namespace}.svc", f"{host}.{namespace}.svc.cluster.local"}
    for address in addresses:  # Flink and Spark report what the address resolves to
        dashed = str(address).replace(".", "-").replace(":", "-")
        names |= {dashed, f"{dashed}.{namespace}.pod", f"{dashed}.{namespace}.pod.cluster.local"}
    return frozenset(map(str, {*names, *addresses}))
