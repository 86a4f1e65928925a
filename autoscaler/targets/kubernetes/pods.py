"""Pods of a target: why they do not come up, and which of them go first."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from autoscaler.clients.kubernetes import EVENTS, PODS, Api, Ask, Json
from autoscaler.ports import Worker

COST = "controller.kubernetes.io/pod-deletion-cost"
SHOWN = 200  # characters of somebody else's message in a remark
MOST_PODS = 1000  # of one target, in one answer
AT_ONCE = 10  # pods annotated at the same time

_CRASHES = frozenset({"CrashLoopBackOff", "RunContainerError", "CreateContainerError", "CreateContainerConfigError"})
_IMAGES = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})


def selector_text(selector: Json) -> str:
    """A label selector (`matchLabels`, `matchExpressions`) as the text that addresses take."""
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
    """Whether a pod is up and stays."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in _conditions(pod))


def keep_pod(pod: Json) -> Json:
    """What is needed of a pod to count it."""
    metadata = pod["metadata"]
    names = ("name", "namespace", "resourceVersion", "deletionTimestamp")
    return {
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "status": {"conditions": [c for c in _conditions(pod) if c.get("type") == "Ready"]},
    }


async def pods_of(api: Api, namespace: str, selector: str) -> list[Json]:
    """The pods that a selector names. Raises EdgeError."""
    answer = await api.call(Ask("list", PODS, namespace), {"labelSelector": selector, "limit": MOST_PODS})
    return list(answer.get("items") or ())


def why_not_up(pods: Iterable[Json]) -> list[str]:
    """Why pods do not come up, one sentence for each reason, the most frequent first. Pods on their way give none."""
    reasons = Counter(reason for pod in pods if not is_ready(pod) if (reason := _reason(pod)) is not None)
    return [
        f"{count} {'pod' if count == 1 else 'pods'} {state}: {message}"
        for (state, message), count in reasons.most_common()
    ]


def _reason(pod: Json) -> tuple[str, str] | None:
    """State and message of a pod that is in trouble, worded so that equal troubles of several pods are equal."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        why = waiting.get("reason", "")
        if why in _IMAGES:
            why = "ImagePullBackOff" if why == "ErrImagePull" else why  # the two take turns
            return "cannot get the image", f"{container.get('image', '?')} ({why})"
        if why in _CRASHES:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            code = f", last exit code {ended['exitCode']}" if "exitCode" in ended else ""
            what = f", {ended['reason']}" if ended.get("reason") not in {None, "Error"} else ""
            return "cannot run", f"container {container.get('name', '?')} is in {why}{code}{what}"
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return "pending", short(condition.get("message") or condition.get("reason") or "not scheduled")
    if status.get("phase") == "Failed":
        return "failed", short(status.get("message") or status.get("reason") or "no reason given")
    return None


def not_created(found: Json) -> str:
    """Why a Deployment or ReplicaSet cannot create pods (quota, a webhook), as its conditions tell; or empty."""
    for condition in _conditions(found):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"pods are not created: {_unnamed(str(condition.get('message', condition.get('reason', ''))))}"
    return ""


async def failed_create(api: Api, namespace: str, name: str, kind: str) -> str:
    """The same of a StatefulSet or custom resource, of which only events tell. Raises EdgeError."""
    fields = f"involvedObject.kind={kind},involvedObject.name={name},reason=FailedCreate"
    answer = await api.call(Ask("list", EVENTS, namespace), {"fieldSelector": fields, "limit": MOST_PODS})
    events = sorted(answer.get("items") or (), key=lambda event: str(event.get("lastTimestamp") or ""))
    return f"pods are not created: {_unnamed(str(events[-1].get('message', '')))}" if events else ""


def _unnamed(message: str) -> str:
    """Without the pod's random name, which differs each time."""
    return short(re.sub(r"^.*?\bpods \"[^\"]*\" is forbidden: ", "", " ".join(message.split())))


def short(text: object) -> str:
    """Somebody else's message as one line of bearable length."""
    line = " ".join(str(text).split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def _conditions(found: Json) -> Sequence[Any]:
    return (found.get("status") or {}).get("conditions") or ()


async def choose(api: Api, pods: Sequence[Json], workers: Sequence[Worker], going: int) -> str:
    """Mark the pods whose workers cost least, so that these go first.

    A ReplicaSet removes pods that are not ready before all others and then those of the least cost; a pod without
    the annotation has cost 0. So the pods that are to go get costs below 0, the cheapest the lowest, and marks that
    are left over from a change that did not come about are taken away.

    Args:
        api: where.
        pods: all pods of the target.
        workers: the engine's.
        going: how many will go.

    Returns:
        Why it was left to Kubernetes, as a remark; empty when the pods are marked.

    Raises:
        EdgeError: a pod could not be marked. Others may have been.
    """
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    costs = {id(pod): worker.cost for pod in staying for worker in workers if is_worker(pod, worker)}
    if not costs:
        return "no pod is one of the engine's workers (compared by address and name), so Kubernetes chooses which go"
    # Pods that are no workers yet (or any more) cost the engine nothing.
    ranked = sorted(staying, key=lambda pod: (costs.get(id(pod), -1.0), str(pod["metadata"]["name"])))
    wanted = {id(pod): rank - going for rank, pod in enumerate(ranked[:going])}
    changes: list[tuple[Json, str | None]] = []
    for pod in staying:
        has = (pod["metadata"].get("annotations") or {}).get(COST)
        wants = str(wanted[id(pod)]) if id(pod) in wanted else None
        ours = has is not None and has.startswith("-")
        if has != wants and (wants is not None or ours):
            changes.append((pod, wants))
    limit = asyncio.Semaphore(AT_ONCE)

    async def mark(pod: Json, cost: str | None) -> None:
        metadata = pod["metadata"]
        async with limit:
            ask = Ask("patch", PODS, metadata["namespace"], metadata["name"])
            await api.call(ask, body={"metadata": {"annotations": {COST: cost}}})

    await _all(mark(pod, cost) for pod, cost in changes)
    return ""


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Do all of it, also when one fails; raise the first failure."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def is_worker(pod: Json, worker: Worker) -> bool:
    """Whether an engine's worker runs in a pod."""
    # The first part of a name is the pod's name or its address, whatever the domain.
    return bool({*worker.hosts, *(host.partition(".")[0] for host in worker.hosts)} & names_of(pod))


def names_of(pod: Json) -> frozenset[str]:
    """Every name and address that an engine may know a pod by."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    name, namespace = metadata["name"], metadata.get("namespace", "")
    addresses = {status.get("podIP"), *(ip.get("ip") for ip in status.get("podIPs") or ())} - {None}
    names = {name, spec.get("hostname") or name}
    if spec.get("subdomain"):
        host = f"{spec.get('hostname') or name}.{spec['subdomain']}"
        names |= {host, f"{host}.{namespace}", f"{host}.{namespace}.svc", f"{host}.{namespace}.svc.cluster.local"}
    for address in addresses:  # Flink and Spark show what the address resolves to
        dashed = str(address).replace(".", "-").replace(":", "-")
        names |= {dashed, f"{dashed}.{namespace}.pod", f"{dashed}.{namespace}.pod.cluster.local"}
    return frozenset(map(str, {*names, *addresses}))
