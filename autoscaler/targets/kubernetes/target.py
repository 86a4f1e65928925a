"""Target `kubernetes`: any Kubernetes object that has a scale subresource.

Sizes come from a watch that all targets of one API server share (see `watch`), so reading a size sends no request. To
set a size, the target patches the scale subresource. The patch is valid only for the object version that was seen.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar, NamedTuple

from autoscaler.clients.kubernetes import (
    EVENTS,
    HPAS,
    PODS,
    REVIEWS,
    SCALED_OBJECTS,
    Access,
    ConflictError,
    Json,
    NotFoundError,
    Request,
    Resource,
    check_times,
)
from autoscaler.clients.kubernetes_annotations import keep_controls, read_controls
from autoscaler.clients.kubernetes_events import event
from autoscaler.clients.kubernetes_watch import Collection, Key, Scope, Watches, shared_watches, version_of
from autoscaler.clients.shared_requests import cancel_all, one_line
from autoscaler.core.model import Bound
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    Finding,
    Notification,
    RefusedError,
    ScaleTarget,
    Severity,
    Shared,
    TargetStatus,
    UnavailableError,
    Workforce,
)
from autoscaler.targets.kubernetes import pods

APPS = {
    "deployments": "Deployment",
    "statefulsets": "StatefulSet",
    "replicasets": "ReplicaSet",
}
ROLLED_OUT = {"deployments", "statefulsets"}  # a ReplicaSet does not replace its pods
MAX_CONFLICTS = 5  # attempts to patch a scale subresource that keeps changing
CHOICE_SHARE = 0.4  # of the time-out, for marking pods, because the change of the size comes after it
POD_LIST_INTERVAL = 10.0  # seconds between two lists of a target's pods while some are not ready
POD_LIST_WAIT = 0.3  # seconds that a reading waits for this list; if it takes longer, the next reading uses it

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PATH = re.compile(r"\.?[A-Za-z]\w*(\.[A-Za-z]\w*)*")


class Watch(StrEnum):
    """The objects that one watch covers."""

    NAME = "name"
    NAMESPACE = "namespace"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """A Kubernetes object with a scale subresource: a Deployment, a StatefulSet, a custom resource.

    Targets with equal `kubeconfig`, `context`, `timeout` and `max_age` share one client and its watches.

    Attributes:
        name: name of the object to scale.
        resource: type of the object: `deployments`, `statefulsets`, `replicasets`, or group, version and plural of a
            custom resource, such as `flink.apache.org/v1beta1/flinkdeployments`. Default `deployments`.
        namespace: namespace of the object. Default: that of the kubeconfig's context, or of the daemon's pod.
        kubeconfig: path of a kubeconfig. Default: in a pod its service account, elsewhere the kubeconfig that kubectl
            would use (KUBECONFIG, `~/.kube/config`).
        context: context of the kubeconfig. Default: its current context.
        watch: what one watch covers. `name`: only this object, which a Role with a resource name allows; `namespace`:
            all objects of its type in the namespace; `cluster`: all objects of its type, with one watch for all targets
            of the API server. Default `name`.
        despite_autoscalers: whether to scale even if a HorizontalPodAutoscaler or a KEDA ScaledObject scales the same
            object. Default false: the size is held, and the reason names the other controller.
        choose_pods: whether the pods of the engine's least costly workers are deleted first. Default false:
            Kubernetes chooses.
        replicas_path: path of a custom resource's desired size: its CRD's `specReplicasPath`. Default `spec.replicas`.
        ready_path: path of a custom resource's number of ready replicas. Default: the daemon counts the pods that the
            scale subresource selects.
        timeout: time-out for one request, including retries. Default 5s.
        max_age: when a watch has received nothing for this long, the size counts as unknown. Default 1m.
    """

    packages: ClassVar[tuple[str, ...]] = ("kubernetes_asyncio",)
    shows_events: ClassVar[bool] = True

    name: str
    _: KW_ONLY
    resource: str = "deployments"
    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    watch: Watch = Watch.NAME
    despite_autoscalers: bool = False
    choose_pods: bool = False
    replicas_path: str = "spec.replicas"
    ready_path: str = ""
    timeout: timedelta = timedelta(seconds=5)
    max_age: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ParameterError("name", f"must be the name of an object (a-z, 0-9, - and .), not {self.name!r}")
        if self.namespace and not _NAME.fullmatch(self.namespace):
            raise ParameterError("namespace", f"must be the name of a namespace, not {self.namespace!r}")
        if self.resource not in APPS and Resource.parse(self.resource) is None:
            raise ParameterError(
                "resource",
                f"must be one of {', '.join(APPS)} or group/version/plural such as "
                f"flink.apache.org/v1beta1/flinkdeployments, not {self.resource!r}",
            )
        for name in ("replicas_path", "ready_path"):
            path = getattr(self, name)
            if (path or name == "replicas_path") and not _PATH.fullmatch(path):
                raise ParameterError(name, f"must be keys joined by dots such as spec.replicas, not {path!r}")
        if self.resource in APPS and (self.replicas_path != "spec.replicas" or self.ready_path):
            raise ParameterError(
                "replicas_path", f"and ready_path are for custom resources and have no effect with {self.resource}"
            )
        if self.choose_pods and self.resource == "statefulsets":
            raise ParameterError(
                "choose_pods", "must be left out for statefulsets: they always remove the highest ordinal"
            )
        check_times(self.timeout, self.max_age)

    @property
    def what(self) -> Resource:
        """The resource type as API paths name it."""
        return Resource.parse(self.resource) or Resource("apps", "v1", self.resource)

    @property
    def subject(self) -> tuple[str, ...]:
        """The identity of the scaled object. The API version does not belong to it."""
        return self.kubeconfig, self.context, self.namespace, self.what.group, self.what.plural, self.name

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Use the shared client and watches of the API server, without waiting for the first list.

        Raises:
            PluginError: the package is not installed, or there are no credentials.
        """
        access = Access(self.kubeconfig, self.context, self.timeout.total_seconds(), self.max_age.total_seconds())
        watches = await shared_watches(shared, access)
        namespace = self.namespace or watches.api.namespace
        within = "" if self.watch is Watch.CLUSTER else namespace
        keep = _keep_workload if self.resource in APPS else _keep_custom
        named = self.name if self.watch is Watch.NAME else ""
        scope = Scope(resource=self.what, keep=keep, namespace=within, name=named)
        async with AsyncExitStack() as stack:
            others: list[Collection] = []
            if not self.despite_autoscalers:
                for resource, index in ((SCALED_OBJECTS, _scaled_object_target), (HPAS, _hpa_target)):
                    other = Scope(
                        resource=resource, keep=_keep_autoscaler, namespace=within, index=index, optional=True
                    )
                    others.append(await stack.enter_async_context(watches.lease(other)))
            objects = await stack.enter_async_context(watches.lease(scope))
            target = Target(self, namespace, watches, objects, others)
            stack.push_async_callback(target.close)
            yield target


class Target:
    """A connected target. Use it from one event loop."""

    def __init__(
        self,
        spec: Kubernetes,
        namespace: str,
        watches: Watches,
        objects: Collection,
        others: Sequence[Collection],
    ) -> None:
        self._spec = spec
        self._key: Key = (namespace, spec.name)
        self._api = watches.api
        self._watches = watches
        self._objects = objects
        self._others = others
        self._pods: Collection | None = None
        self._pods_lease = AsyncExitStack()
        self._selector = ""
        self._compared_version = ""
        self._compared_uid: str | None = None
        self._shown: int | None = None
        self._reported: int | None = None
        self._requested: int | None = None
        self._workforce: Callable[[], Workforce] | None = None
        self._choice_remark: str | None = None
        self._pods_listed_at = -POD_LIST_INTERVAL
        self._listing: asyncio.Task[tuple[str, ...]] | None = None
        self._reasons: tuple[str, ...] = ()

    async def close(self) -> None:
        """Cancel the listing of pods and end their watch."""
        if self._listing is not None:
            await cancel_all([self._listing])
        await self._pods_lease.aclose()

    @property
    def _label(self) -> str:
        return f"{self._spec.what} {self._key[0]}/{self._key[1]}"

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Set the engine that reports the cost of losing each worker, for `choose_pods`."""
        self._workforce = workforce

    async def describe(self) -> TargetStatus:
        """Return the status as the watch has shown it.

        Raises:
            UnavailableError: the watch has received nothing for longer than `max_age`.
            RefusedError: there is no such object, or access is denied.
            AnswerError: the object has no size at the expected path.
        """
        found = await self._found()
        desired = self._desired(found)
        if self._custom:
            await self._compare_scale(found, desired)
        ready = await self._ready(found, desired)
        changed = self._changed(found, desired)
        self._shown = desired
        self._requested = None if self._requested == desired else self._requested
        other = await self._other()
        hold = None if other is None else Bound(desired, f"{other} scales it too")
        rollout = _rollout(found) if self._spec.resource in ROLLED_OUT else ()
        controls, wrong = read_controls(found["metadata"]["annotations"], self._label)
        remarks = [*wrong, *changed, *rollout, *await self._not_ready_reasons(found, desired, ready)]
        if self._choice_remark is not None:
            remarks.append(self._choice_remark)
            self._choice_remark = self._choice_remark if ready > desired else None
        return TargetStatus(desired, ready, tuple(remarks), hold, hold, controls)

    async def scale(self, replicas: int) -> None:
        """Patch the scale subresource, if the size is still the one that `describe` returned last.

        Raises:
            RefusedError: another controller also scales the object, another client has changed the size meanwhile, or
                access is denied. The size was not changed.
            EdgeError: the request failed, or it is unknown whether it was accepted.
        """
        if replicas < 0:
            raise RefusedError(f"a size is 0 or more, not {replicas}")
        other = await self._other()
        if other is not None:
            raise RefusedError(
                f"{self._label} is not scaled: {other} scales it too; remove one of the two, or set "
                "despite_autoscalers: true"
            )
        found = await self._found()
        desired = self._desired(found)
        base = desired if self._shown is None else self._shown
        try:
            async with asyncio.timeout(self._api.access.timeout):
                self._choice_remark, self._requested = None, None
                if self._spec.choose_pods and replicas < desired:
                    self._choice_remark = await self._mark_pods(found, desired - replicas)
                await self._patch(found, base, replicas)
        except RefusedError:
            self._requested = None
            raise
        except TimeoutError as error:
            raise EdgeTimeoutError(
                f"{self._label}: {replicas} replicas were requested, but the API server did not answer in time: it is "
                "unknown whether the request was accepted"
            ) from error

    async def show(self, notification: Notification) -> None:
        """Create an Event about the object. Raises EdgeError."""
        metadata = (await self._found())["metadata"]
        namespace, name = self._key
        subject = {
            "apiVersion": f"{self._spec.what.group}/{self._spec.what.version}".lstrip("/"),
            "kind": APPS.get(self._spec.resource) or self._objects.kind,
            "name": name,
            "namespace": namespace,
            "uid": metadata.get("uid", ""),
        }
        kind = "Normal" if notification.severity is Severity.INFO else "Warning"
        reason = notification.kind.title().replace("-", "")
        made = event(subject, kind, reason, notification.message, notification.at)
        await self._api.call(Request("create", EVENTS, namespace), body=made)

    async def diagnose(self) -> Sequence[Finding]:
        """Check the permissions, and find other controllers of the same object. Raises EdgeError."""
        findings: list[Finding] = []
        for request, severity, effect in self._needs():
            if not await self._is_allowed(request):
                # The subject is the server, not the target: a permission that several targets lack is shown once.
                problem = f"no permission: {request}"
                findings.append(Finding(severity, self._api.server, problem, effect, _grant(request)))
        try:
            other, found = await self._other(), await self._found()
        except EdgeError:
            if not findings:
                raise
            return findings  # a missing permission explains why the object cannot be read
        if other is not None:
            findings.append(
                Finding(
                    Severity.ERROR,
                    self._label,
                    f"{other} scales it too",
                    "this daemon does not scale it; otherwise each would undo the other's changes",
                    "remove one of the two, or set despite_autoscalers: true",
                )
            )
        min_ready = _at(found, "spec.minReadySeconds")
        if isinstance(min_ready, int) and min_ready:
            findings.append(
                Finding(
                    Severity.INFO,
                    self._label,
                    f"minReadySeconds is {min_ready}",
                    "a rollout takes longer; for the daemon a pod counts as soon as it is ready",
                    "leave it out unless rollouts need it",
                )
            )
        return findings

    @property
    def _custom(self) -> bool:
        return self._spec.resource not in APPS

    async def _found(self) -> Json:
        """The object as the watch has shown it. Raises EdgeError if it is stale, missing or being deleted."""
        await self._objects.fresh()
        found = self._objects.objects.get(self._key)
        if found is None:
            raise RefusedError(
                f"there is no {self._spec.name} among the {self._spec.what} in namespace {self._key[0]}: "
                "check name, resource and namespace"
            )
        if "deletionTimestamp" in found["metadata"]:
            raise RefusedError(f"{self._label} is being deleted")
        return found

    def _desired(self, found: Json) -> int:
        written = self._objects.written(self._key)
        if written is not None:
            return written[1]
        size = _at(found, self._spec.replicas_path)
        if not _is_size(size):
            raise AnswerError(
                f"{self._label} has {'no size' if size is None else repr(size)} at {self._spec.replicas_path}; set it "
                "there, or set replicas_path to its CRD's specReplicasPath"
            )
        return size  # type: ignore[return-value] # it is an int: see _is_size

    def _changed(self, found: Json, desired: int) -> Sequence[str]:
        """A remark if another client has changed the size since the last report, with the client's name if known."""
        if self._objects.written(self._key) is not None:
            return ()  # the watch has not shown yet which client changed the size
        before, self._reported = self._reported, desired
        if before is None or desired in {before, self._requested}:
            return ()
        metadata = found["metadata"]
        who = _manager(metadata, self._spec.replicas_path) if self._custom else metadata["manager"]
        return (f"the size was changed from {before} to {desired} by {who or 'another client'}",)

    async def _compare_scale(self, found: Json, desired: int) -> None:
        """Compare `replicas_path` with the scale subresource, and read the selector of the pods from it.

        This happens once per object. If the object has no selector yet (the operator has not started the job), it
        happens after each change until there is one.
        """
        uid = found["metadata"].get("uid")
        if uid != self._compared_uid:
            self._compared_uid, self._selector = uid, ""
        if self._selector or self._compared_version == version_of(found):
            return
        scale = _read_scale(await self._api.call(self._request("get", "scale")))
        if scale.version != version_of(found):
            if not self._spec.ready_path:
                raise UnavailableError(f"{self._label} is changing too fast to be compared with its scale subresource")
            return
        if scale.size != desired:
            raise AnswerError(
                f"{self._label} has the size {desired} at {self._spec.replicas_path}, but its scale subresource has "
                f"{scale.size}; set replicas_path to its CRD's specReplicasPath"
            )
        self._selector, self._compared_version = scale.selector, scale.version

    async def _ready(self, found: Json, desired: int) -> int:
        if not self._custom:
            ready = _at(found, "status.readyReplicas")  # Kubernetes leaves the field out when it is 0
            return ready if isinstance(ready, int) else 0
        path = self._spec.ready_path
        if path:
            ready = _at(found, path)
            above = _at(found, path.rpartition(".")[0])
            if ready is None and isinstance(above, dict):
                return 0  # Kubernetes leaves the field out when it is 0
            if not _is_size(ready):
                raise AnswerError(
                    f"{self._label} has {ready!r} at {path}, expected a number of replicas; see ready_path"
                )
            return ready  # type: ignore[return-value] # it is an int: see _is_size
        if not self._selector:
            if desired == 0:
                return 0
            raise AnswerError(
                f"the scale subresource of {self._label} has no selector of its pods: its controller sets it later; if "
                "it never does, set ready_path to the path of the number of ready replicas"
            )
        if self._pods is None or self._pods.scope.labels != self._selector:
            scope = Scope(resource=PODS, keep=pods.keep_pod, namespace=self._key[0], labels=self._selector)
            await self._pods_lease.aclose()
            self._pods = await self._pods_lease.enter_async_context(self._watches.lease(scope))
        await self._pods.fresh()
        return sum(map(pods.is_ready, self._pods.objects.values()))

    async def _other(self) -> str | None:
        """Another controller that scales the same object, or None. Controllers that must not be listed are ignored.

        Raises:
            UnavailableError: it is unknown at present whether there is another controller.
        """
        kind = APPS.get(self._spec.resource) or self._objects.kind
        for others in self._others:
            try:
                await others.fresh()
            except EdgeError as error:
                if not others.denied:
                    raise UnavailableError(
                        f"whether another controller ({others.scope.resource}) scales {self._label} too is not known "
                        f"at present: {error}"
                    ) from error
            for other in others.find((self._key[0], self._spec.what.group, kind, self._key[1])):
                name = other["metadata"]["name"]
                return f"the {'KEDA ScaledObject' if others.scope.resource is SCALED_OBJECTS else others.kind} {name}"
        return None

    async def _not_ready_reasons(self, found: Json, desired: int, ready: int) -> Sequence[str]:
        """Why not all replicas are ready. A background task lists the pods, at most every ten seconds."""
        if ready >= desired:
            await self.close()
            self._listing, self._reasons = None, ()
            return ()
        created = pods.not_created(found)
        now = asyncio.get_running_loop().time()
        if self._listing is None and now - self._pods_listed_at >= POD_LIST_INTERVAL and self._watches.may_list_pods():
            self._pods_listed_at = now
            self._listing = asyncio.create_task(self._list_reasons(found, desired), name=f"pods of {self._label}")
        listing = self._listing
        if listing is not None:
            await asyncio.wait((listing,), timeout=POD_LIST_WAIT)
            if listing.done():
                self._listing = None
                self._reasons = listing.result()
        return (*([] if created is None else [created]), *self._reasons)

    async def _list_reasons(self, found: Json, desired: int) -> tuple[str, ...]:
        try:
            listed = await pods.pods_of(self._api, self._key[0], self._selected(found))
            reasons = pods.not_ready_reasons(listed)
            # Kubernetes keeps Events for an hour: if all pods exist, the Events are about the past.
            if len(listed) < desired and (self._custom or self._spec.resource == "statefulsets"):
                kind = APPS.get(self._spec.resource) or self._objects.kind
                created = await pods.failed_create(self._api, *self._key, kind, listed)
                if created is not None:
                    reasons = [created, *reasons]
        except EdgeTimeoutError:
            return self._reasons
        except EdgeError as error:
            return (f"why pods do not become ready is unknown: {error}",)
        return tuple(reasons)

    def _selected(self, found: Json) -> str:
        """The selector of the object's pods. Raises AnswerError if it is empty, which would select all pods."""
        selector = self._selector if self._custom else pods.selector_string(_at(found, "spec.selector") or {})  # type: ignore[arg-type] # an object: the API checks it
        if not selector:
            raise AnswerError(f"{self._label} has no selector of its pods")
        return selector

    async def _mark_pods(self, found: Json, surplus: int) -> str | None:
        """Mark the pods to delete first. Returns a remark if this was not possible; the size is changed anyway."""
        try:
            async with asyncio.timeout(self._api.access.timeout * CHOICE_SHARE):
                if self._workforce is None:
                    return "no engine names the workers, so Kubernetes chooses which pods to delete"
                workers = await self._workforce().workers()
                found_pods = await pods.pods_of(self._api, self._key[0], self._selected(found))
                return await pods.mark_cheapest(self._api, found_pods, workers, surplus)
        except TimeoutError:
            return "Kubernetes chooses which pods to delete: there was no time left to mark them"
        except EdgeError as error:
            return f"Kubernetes chooses which pods to delete: {error}"

    async def _patch(self, found: Json, base: int, replicas: int) -> None:
        """Set the size, provided that it is still `base`."""
        written = self._objects.written(self._key)
        version = version_of(found) if written is None else written[0]
        size = self._desired(found)
        for _ in range(MAX_CONFLICTS):
            if size not in {base, replicas}:
                raise RefusedError(
                    f"{self._label} was changed from {base} to {size} replicas by another client since this was "
                    f"decided; {replicas} was not requested"
                )
            try:
                self._requested = replicas  # until an answer arrives: a request without answer may still be accepted
                body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
                scale = _read_scale(await self._api.call(self._request("patch", "scale"), body=body))
                if scale.size != replicas:
                    raise AnswerError(
                        f"{self._label}: {replicas} replicas were requested and {scale.size} were set: check for an "
                        "admission webhook that changes the size"
                    )
            except ConflictError:
                # Something has changed the object, perhaps not its size, or our own patch whose answer was lost.
                scale = _read_scale(await self._api.call(self._request("get", "scale")))
                version, size, _ = scale
                if size != replicas:
                    self._requested = None
                    self._objects.wrote(self._key, version, size)  # the watch may not have reached this version yet
                    continue
            self._requested = None
            self._objects.wrote(self._key, scale.version, replicas)
            self._shown = self._reported = replicas
            return
        raise UnavailableError(
            f"{self._label} changed {MAX_CONFLICTS} times while {replicas} replicas were requested; nothing was changed"
        )

    def _request(self, verb: str, subresource: str = "") -> Request:
        return Request(verb, self._spec.what, *self._key, subresource)

    def _needs(self) -> Sequence[tuple[Request, Severity, str]]:
        """The required permissions, each with the effect if it is missing."""
        namespace, error, warning = self._key[0], Severity.ERROR, Severity.WARNING
        counts = self._custom and not self._spec.ready_path
        blind = "why pods do not become ready is unknown"
        needs = [
            (self._objects.scope.request("list"), error, "the size cannot be read"),
            (self._objects.scope.request("watch"), error, "the size cannot be read"),
            (
                self._request("get", "scale"),
                error,
                "another client's change cannot be distinguished from a lost answer",
            ),
            (self._request("patch", "scale"), error, "nothing can be scaled"),
            (
                Request("list", PODS, namespace),
                error if counts else warning,
                "pods cannot be counted" if counts else blind,
            ),
        ]
        if counts:
            needs.append((Request("watch", PODS, namespace), error, "pods cannot be counted"))
        if self._custom or self._spec.resource == "statefulsets":
            needs.append((Request("list", EVENTS, namespace), warning, blind))
        if self._spec.choose_pods:
            needs.append((Request("patch", PODS, namespace), warning, "Kubernetes chooses which pods to delete"))
        needs.append((Request("create", EVENTS, namespace), Severity.INFO, "rescales are not shown as Events"))
        for others in self._others:
            if not isinstance(others.error, NotFoundError):
                unseen = "another controller on the same target is not noticed"
                needs += [(others.scope.request(verb), warning, unseen) for verb in ("list", "watch")]
        return needs

    async def _is_allowed(self, request: Request) -> bool:
        attributes = {
            "verb": request.verb,
            "group": request.resource.group,
            "version": request.resource.version,
            "resource": request.resource.plural,
            "subresource": request.subresource,
            "namespace": request.namespace,
            "name": request.name,
        }
        review = {
            "apiVersion": f"{REVIEWS.group}/{REVIEWS.version}",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        answer = await self._api.call(Request("create", REVIEWS), body=review)
        return (answer.get("status") or {}).get("allowed") is True


def _grant(request: Request) -> str:
    """The remedy for a missing permission. The API server also answers 403 for an object that does not exist."""
    if not request.namespace:
        return "bind the daemon's service account to a ClusterRole (see deploy/kubernetes/components/watch-cluster)"
    role = "add the rule to the Role of the daemon's service account (see deploy/kubernetes)"
    return f"correct name and namespace of the target if they are wrong, else {role}" if request.name else role


def _at(found: object, path: str) -> object:
    """The value at a path of keys joined by dots, or None."""
    for key in path.lstrip(".").split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class _Scale(NamedTuple):
    """A scale subresource: its version, the desired size, and the selector of the pods, or an empty string."""

    version: str
    size: int
    selector: str


def _read_scale(answer: Json) -> _Scale:
    """Parse a Scale object, in which Kubernetes leaves out a size of 0. Raises AnswerError."""
    try:
        version, size = version_of(answer), (answer.get("spec") or {}).get("replicas", 0)
        selector = str((answer.get("status") or {}).get("selector") or "")
    except (KeyError, TypeError, AttributeError) as error:
        raise AnswerError(f"a scale subresource was answered with another object: {one_line(answer, 120)}") from error
    if not _is_size(size):
        raise AnswerError(f"a scale subresource has {size!r} as spec.replicas, expected a number")
    return _Scale(version, size, selector)


def _rollout(found: Json) -> Sequence[str]:
    """A remark if newer pods are replacing the pods of a Deployment or StatefulSet."""
    status = found["status"]
    if "updateRevision" in status and status["updateRevision"] == status.get("currentRevision"):
        return ()  # a StatefulSet without a rollout
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)  # left out by Kubernetes when 0
    if updated < total:
        progress = "paused" if found["spec"].get("paused") else "under way"
        return (f"a rollout is {progress}: {updated} of {total} pods are of the newest version",)
    return ()


def _manager(metadata: Json, path: str) -> str:
    """The field manager that last set the size at a path, from `managedFields`; empty when unknown."""
    field = ".".join(f"f:{key}" for key in path.lstrip(".").split("."))
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in metadata.get("managedFields") or ()
        if _at(entry.get("fieldsV1"), field) is not None
    ]
    return max(entries)[1] if entries else ""


_FALSE = frozenset(
    {"0", "f", "F", "false", "FALSE", "False"}
)  # the strings that Go parses as false; KEDA reads any other value as true
_KEPT = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


def _keep_metadata(found: Json, names: Sequence[str]) -> Json:
    """The given fields of an object's metadata, and its annotations that pause or hold the cluster."""
    metadata = found["metadata"]
    kept = {name: metadata[name] for name in names if name in metadata}
    return {**kept, "annotations": keep_controls(metadata.get("annotations"))}


def _keep_workload(found: Json) -> Json:
    """Reduce a Deployment, StatefulSet or ReplicaSet to the fields that the target reads."""
    spec = found.get("spec") or {}
    metadata = _keep_metadata(found, _KEPT)
    return {
        "metadata": {**metadata, "manager": _manager(found["metadata"], "spec.replicas")},
        "spec": {name: spec[name] for name in ("replicas", "selector", "minReadySeconds", "paused") if name in spec},
        "status": found.get("status") or {},
    }


def _keep_custom(found: Json) -> Json:
    """Reduce a custom resource, but keep all of `spec` and `status`: its size may be at any path."""
    metadata = _keep_metadata(found, (*_KEPT, "managedFields"))
    return {"metadata": metadata, "spec": found.get("spec") or {}, "status": found.get("status") or {}}


def _keep_autoscaler(found: Json) -> Json:
    """Reduce an HPA or a ScaledObject to its target and its pause."""
    metadata = {name: found["metadata"][name] for name in _KEPT if name in found["metadata"]}
    annotations = found["metadata"].get("annotations") or {}
    paused = annotations.get("autoscaling.keda.sh/paused", "false") not in _FALSE
    holds = "autoscaling.keda.sh/paused-replicas" in annotations
    return {
        "metadata": metadata,
        "scaleTargetRef": (found.get("spec") or {}).get("scaleTargetRef") or {},
        "paused": paused and not holds,
    }


def _hpa_target(kept: Json) -> Hashable:
    reference = kept["scaleTargetRef"]
    group = str(reference.get("apiVersion") or "").rpartition("/")[0]
    return kept["metadata"].get("namespace"), group, reference.get("kind"), reference.get("name")


def _scaled_object_target(kept: Json) -> Hashable:
    """The index of a ScaledObject: its target, by default a Deployment, or None if it is paused."""
    if kept["paused"]:
        return None
    reference = kept["scaleTargetRef"]
    group = str(reference.get("apiVersion") or "apps/v1").rpartition("/")[0]
    return kept["metadata"].get("namespace"), group, reference.get("kind") or "Deployment", reference.get("name")
