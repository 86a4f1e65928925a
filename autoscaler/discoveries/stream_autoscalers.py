"""Discovery `stream-autoscalers`: the custom resources StreamAutoscaler, each of which describes a cluster.

The person who creates such a resource may not be the person who runs the daemon. Therefore a resource can scale only
objects in its own namespace, with the daemon's access to Kubernetes. Its spec can neither read the daemon's environment
nor name files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from autoscaler.clients.kubernetes import EVENTS, Api, Json, NotFoundError, Request, Resource
from autoscaler.clients.kubernetes_annotations import read_controls
from autoscaler.clients.kubernetes_events import cut, event, format_time
from autoscaler.clients.kubernetes_watch import Collection, Key
from autoscaler.config.crd import GROUP, KIND, PLURAL, VERSION
from autoscaler.core.model import Control
from autoscaler.core.parameters import ParameterError
from autoscaler.discoveries.kubernetes import Found, Kubernetes, keep_member
from autoscaler.ports import Discovery, Member, MemberStatus, Shared

RESOURCE = Resource(GROUP, VERSION, PLURAL)
READY = "Ready"

_OURS = ("kubeconfig", "context")  # parameters that a target takes from the discovery


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAutoscalers:
    """The custom resources StreamAutoscaler: each describes a cluster in its `spec`; the daemon writes its `status`.

    Attributes:
        namespaces: the namespaces to search, with one list and one watch for each. Default: that of the kubeconfig's
            context, or of the daemon's pod.
        all: whether to search all namespaces, with one list and one watch, which needs a ClusterRole. Default false.
        selector: label selector in kubectl's syntax. Default: all resources.
        allow: types of targets that a spec may have. A target of type `kubernetes` is always in the namespace of the
            resource, and has `watch: namespace` by default. Default: only this type.
        kubeconfig: path of a kubeconfig, also for the targets. Default: in a pod its service account, elsewhere the
            kubeconfig that kubectl would use (KUBECONFIG, `~/.kube/config`).
        context: context of the kubeconfig. Default: its current context.
        timeout: time-out for one request, including retries. Default 5s.
        max_age: when a watch has received nothing for this long, the members count as unknown. Default 1m.
    """

    packages: ClassVar[tuple[str, ...]] = Kubernetes.packages
    variables: ClassVar[tuple[str, ...]] = Kubernetes.variables
    brings_templates: ClassVar[bool] = True

    namespaces: tuple[str, ...] = ()
    all: bool = False
    selector: str = ""
    allow: tuple[str, ...] = ("kubernetes",)
    kubeconfig: str = ""
    context: str = ""
    timeout: timedelta = timedelta(seconds=5)
    max_age: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if not self.allow:
            raise ParameterError("allow", "must name at least one type of targets")
        self._resources()

    def _resources(self) -> Kubernetes:
        """The discovery of the resources as objects. Raises ParameterError."""
        return Kubernetes(
            resource=f"{GROUP}/{VERSION}/{PLURAL}",
            selector=self.selector,
            namespaces=self.namespaces,
            all=self.all,
            kubeconfig=self.kubeconfig,
            context=self.context,
            timeout=self.timeout,
            max_age=self.max_age,
        )

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Discovery]:
        """Use the shared client and watches of the API server, without waiting for the first list.

        Raises:
            PluginError: the package is not installed, or there are no credentials.
        """
        async with self._resources().lease(shared, self.keep) as (api, collections):
            yield Live(api, collections, dry_run=getattr(shared, "dry_run", False))

    def controls(self, member: Member) -> tuple[tuple[Control, ...], tuple[str, ...]]:
        """The controls in the annotations of a resource, and a sentence for each invalid one."""
        annotations = member.values.get("annotations")
        return read_controls(annotations if isinstance(annotations, Mapping) else {}, f"{PLURAL} {member.id}")

    def keep(self, found: Json) -> Json:
        """Reduce a resource to its member and the fields needed to write its status."""
        kept, metadata = keep_member(found), found["metadata"]
        member = kept["member"]
        if member is not None:
            kept["member"] = replace(member, **self._template(found.get("spec"), metadata["namespace"]))
        status = found.get("status") or {}
        conditions = status.get("conditions") or ()
        ready: Json = next((condition for condition in conditions if condition.get("type") == READY), {})
        return {
            "metadata": {**kept["metadata"], "uid": metadata.get("uid", ""), "generation": metadata.get("generation")},
            "member": kept["member"],
            "rescaled_at": status.get("lastRescaleTime"),
            "ready": (ready.get("status"), ready.get("message"), ready.get("lastTransitionTime")),
        }

    def _template(self, spec: object, namespace: str) -> dict[str, Any]:
        """The template, or the problem, of the member with this spec."""
        target = spec.get("target") if isinstance(spec, dict) else None
        if not isinstance(spec, dict) or not isinstance(target, dict):
            return {"problem": "spec.target: missing; expected a mapping with `type` and its parameters"}
        kind = target.get("type")
        if kind not in self.allow:
            shown = kind if isinstance(kind, str) else type(kind).__name__
            return {"problem": f"spec.target.type: must be one of {', '.join(self.allow)}, not {shown}"}
        if kind != "kubernetes":
            return {"template": spec}
        for key in _OURS:
            if key in target:
                return {"problem": f"spec.target.{key}: must be left out: the target uses the discovery's access"}
        if target.get("namespace", namespace) != namespace:
            return {"problem": f"spec.target.namespace: must be left out: the target is in {namespace}"}
        ours = {key: getattr(self, key) for key in _OURS if getattr(self, key)}
        # By default all targets in a namespace share one watch.
        return {"template": {**spec, "target": {"watch": "namespace", **target, **ours, "namespace": namespace}}}


class Live(Found):
    """The members as the watches have shown them, with methods that write their status and Events."""

    def __init__(self, api: Api, collections: Sequence[Collection], *, dry_run: bool) -> None:
        super().__init__(collections)
        self._api = api
        self._dry_run = dry_run
        self._reported: dict[str, MemberStatus] = {}

    async def report(self, member: str, status: MemberStatus) -> None:
        """Write the status of a resource, and an Event when a rescale happens or a problem starts or ends.

        Raises:
            EdgeError: the status or the Event cannot be written now.
        """
        namespace, _, name = member.partition("/")
        found = self._find((namespace, name))
        if found is None or self._dry_run:
            self._reported.pop(member, None)
            return
        request = Request("patch", RESOURCE, namespace, name, "status")
        try:
            await self._api.call(request, body={"status": _status(status, found)})
            for event in _events(self._reported.get(member), status, found):
                await self._api.call(Request("create", EVENTS, namespace), body=event)
        except NotFoundError:  # the resource was deleted meanwhile
            self._reported.pop(member, None)
        else:
            self._reported[member] = status

    def _find(self, key: Key) -> Json | None:
        """The reduced resource; None if it does not exist or is being deleted."""
        found = next((each.objects[key] for each in self.collections if key in each.objects), None)
        return None if found is None or found["member"] is None else found


def _status(status: MemberStatus, found: Json) -> Json:
    """The status subresource."""
    generation = found["metadata"]["generation"]
    ready, _, since = found["ready"]
    shown = "True" if status.problem is None else "False"
    reason = "Decided" if status.problem is None else "SpecRefused" if status.refused else "Troubled"
    condition = {
        "type": READY,
        "status": shown,
        "reason": reason,
        "message": cut(status.problem or status.message),
        "lastTransitionTime": since if ready == shown and since else format_time(status.at),
        "observedGeneration": generation,
    }
    return {
        "observedGeneration": generation,
        "size": status.size,
        "proposedSize": status.proposed,
        "reason": status.reason or reason,
        "message": cut(status.problem or status.message),
        "lastRescaleTime": None if status.rescaled_at is None else format_time(status.rescaled_at),
        "conditions": [condition],
    }


def _events(before: MemberStatus | None, status: MemberStatus, found: Json) -> Sequence[Json]:
    """The Events of a change. Without an earlier status, compare with the status that the resource already shows."""
    made: list[tuple[str, str, str]] = []
    known_at = found["rescaled_at"] if before is None else before.rescaled_at and format_time(before.rescaled_at)
    if status.rescaled_at is not None and format_time(status.rescaled_at) != known_at:
        made.append(("Normal", "Rescaled", status.message))
    ready, message, _ = found["ready"]
    known = (None if before.problem is None else cut(before.problem)) if before else message
    was_ready = before.problem is None if before else ready != "False"
    if status.problem is not None and (was_ready or cut(status.problem) != known):
        made.append(("Warning", "SpecRefused" if status.refused else "Troubled", status.problem))
    if status.problem is None and not was_ready:
        made.append(("Normal", "Recovered", status.message))
    return [_event(kind, reason, text, status.at, found) for kind, reason, text in made]


def _event(kind: str, reason: str, message: str, at: datetime, found: Json) -> Json:
    kept = {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
    return event({"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, **kept}, kind, reason, message, at)
