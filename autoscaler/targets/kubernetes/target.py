"""Target `kubernetes`: anything on a Kubernetes cluster that has a scale subresource.

Sizes come from a watch that all targets of one API server share (`kubernetes_watch`), so looking costs the API
server nothing. A size is asked for by a patch of the scale subresource that holds only for the version it was
decided on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from autoscaler.clients.kubernetes import (
    EVENTS,
    HPAS,
    PODS,
    REVIEWS,
    SCALED_OBJECTS,
    AbsentError,
    Access,
    Ask,
    ConflictError,
    Json,
    Resource,
)
from autoscaler.core.model import Bound
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    Finding,
    RefusedError,
    ScaleTarget,
    Severity,
    Shared,
    TargetStatus,
    UnavailableError,
    Workforce,
)
from autoscaler.targets.kubernetes import pods
from autoscaler.targets.kubernetes.watch import Collection, Key, Scope, Watches, connect_watches, version_of

APPS = {
    "deployments": "Deployment",
    "statefulsets": "StatefulSet",
    "replicasets": "ReplicaSet",
}
CONFLICTS = 5  # patches of a scale subresource that changes all the time
CHOOSING = 0.4  # of the time-out: no longer for marking pods, as the size itself comes after it
LOOK = 10.0  # seconds between two looks at the pods of a target that are not up
LOOKING = 2.0  # seconds for one look

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_RESOURCE = re.compile(r"(?P<group>[a-z0-9][-a-z0-9.]*)/(?P<version>v[a-z0-9]+)/(?P<plural>[a-z][a-z0-9]*)")
_PATH = re.compile(r"\.?[A-Za-z]\w*(\.[A-Za-z]\w*)*")


class Watch(StrEnum):
    """How much is watched at once."""

    NAME = "name"
    NAMESPACE = "namespace"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """Anything on Kubernetes that has a scale subresource: a Deployment, a StatefulSet, a custom resource.

    Targets with equal `kubeconfig`, `context`, `timeout` and `max_age` share one client and its watches.

    Attributes:
        name: name of the object that is scaled.
        resource: what it is: `deployments`, `statefulsets`, `replicasets`, or group, version and plural of a custom
            resource as `flink.apache.org/v1beta1/flinkdeployments`. Default `deployments`.
        namespace: its namespace. Default: that of the kubeconfig's context, or of the pod the daemon runs in.
        kubeconfig: path of a kubeconfig. Default: in a pod its service account, elsewhere what kubectl would use
            (KUBECONFIG, `~/.kube/config`).
        context: context of the kubeconfig. Default: its current one.
        watch: what one watch covers: `name` this object alone, which a Role by resource name allows; `namespace`
            all of its kind in the namespace; `cluster` all of its kind, one watch for all targets of the API server.
            Default `name`.
        despite_autoscalers: whether to scale also when a HorizontalPodAutoscaler or a KEDA ScaledObject has the same
            target. Default false: the size is held and the other one is named.
        choose_pods: whether the pods of the engine's least costly workers go first. Default false: Kubernetes chooses.
        replicas_path: where a custom resource keeps its desired size, as its CRD's `specReplicasPath`.
            Default `spec.replicas`.
        ready_path: where a custom resource shows how many replicas are ready. Default: the pods that its scale
            subresource selects are counted.
        timeout: time for one question or change, retries included. Default 5s.
        max_age: when nothing has been heard of a watch for so long, the size counts as unknown. Default 1m.
    """

    name: str
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
        if self.resource not in APPS and not _RESOURCE.fullmatch(self.resource):
            raise ParameterError(
                "resource",
                f"must be one of {', '.join(APPS)} or group/version/plural such as "
                f"flink.apache.org/v1beta1/flinkdeployments, not {self.resource!r}",
            )
        for name in ("replicas_path", "ready_path"):
            path = getattr(self, name)
            if (path or name == "replicas_path") and not _PATH.fullmatch(path):
                raise ParameterError(name, f"must be keys joined by points such as spec.replicas, not {path!r}")
        if self.resource in APPS and (self.replicas_path != "spec.replicas" or self.ready_path):
            raise ParameterError(
                "replicas_path", f"and ready_path are for custom resources; those of {self.resource} are known"
            )
        if self.choose_pods and self.resource == "statefulsets":
            raise ParameterError(
                "choose_pods", "must be left out for statefulsets: they always remove the highest ordinal"
            )
        if self.timeout <= timedelta(0):
            raise ParameterError("timeout", "must be above 0s")
        if self.max_age < timedelta(seconds=2):
            raise ParameterError("max_age", "must be 2s or more: a watch lasts half of it, in whole seconds")

    @property
    def what(self) -> Resource:
        """The resource as the API's addresses name it."""
        match = _RESOURCE.fullmatch(self.resource)
        return Resource(*match.groups()) if match else Resource("apps", "v1", self.resource)

    @property
    def subject(self) -> tuple[str, ...]:
        """What is scaled, whatever else is said of it. The version of an API does not make it another thing."""
        return self.kubeconfig, self.context, self.namespace, self.what.group, self.what.plural, self.name

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Take part in the client and the watches of the API server. Nothing is waited for.

        Raises:
            PluginError: the package is not installed, or there are no credentials.
        """
        access = Access(self.kubeconfig, self.context, self.timeout.total_seconds(), self.max_age.total_seconds())
        watches = await shared.enter(("autoscaler.targets.kubernetes.target", access), lambda: connect_watches(access))
        namespace = self.namespace or watches.api.namespace
        within = "" if self.watch is Watch.CLUSTER else namespace
        keep = _keep_workload if self.resource in APPS else _keep_custom
        scope = Scope(self.what, keep, within, self.name if self.watch is Watch.NAME else "")
        async with AsyncExitStack() as stack:
            others: list[Collection] = []
            if not self.despite_autoscalers:
                for resource, index in ((SCALED_OBJECTS, _scaled_object_target), (HPAS, _hpa_target)):
                    other = Scope(resource, _keep_autoscaler, within, index=index, optional=True)
                    others.append(await stack.enter_async_context(watches.lease(other)))
            things = await stack.enter_async_context(watches.lease(scope))
            yield Target(self, namespace, watches, things, others, stack)


class Target:
    """A live target. Use it from one event loop."""

    def __init__(
        self,
        spec: Kubernetes,
        namespace: str,
        watches: Watches,
        things: Collection,
        others: Sequence[Collection],
        stack: AsyncExitStack,
    ) -> None:
        self._spec = spec
        self._key: Key = (namespace, spec.name)
        self._api = watches.api
        self._watches = watches
        self._things = things
        self._others = others
        self._stack = stack
        self._pods: Collection | None = None
        self._selector = ""
        self._learned = ""
        self._shown: int | None = None
        self._told: int | None = None
        self._asked: int | None = None
        self._workforce: Callable[[], Workforce] | None = None
        self._left = ""
        self._looked = -LOOK
        self._reasons: tuple[str, ...] = ()

    @property
    def _label(self) -> str:
        return f"{self._spec.what} {self._key[0]}/{self._key[1]}"

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Take the engine that says what losing each worker costs. Without `choose_pods` it is not asked."""
        self._workforce = workforce

    async def describe(self) -> TargetStatus:
        """Say what the watch has shown.

        Raises:
            UnavailableError: the watch has been silent for longer than `max_age`.
            RefusedError: there is no such object, or it may not be read.
            AnswerError: it has no size where one was expected.
        """
        found = await self._found()
        desired = self._desired(found)
        if self._custom:
            await self._learn_scale(found, desired)
        ready = await self._ready(found, desired)
        changed = self._changed(found, desired)
        self._shown = desired
        self._asked = None if self._asked == desired else self._asked
        other = await self._other()
        hold = Bound(desired, f"{other} scales it too") if other else None
        remarks = [*changed, *_rollout(found), *await self._why_short(found, desired, ready)]
        if self._left:
            remarks.append(self._left)
            self._left = self._left if ready > desired else ""
        return TargetStatus(desired, ready, tuple(remarks), hold, hold)

    async def scale(self, replicas: int) -> None:
        """Patch the scale subresource, on condition that the size is still the one that was shown last.

        Raises:
            RefusedError: another controller scales it too, somebody has changed the size meanwhile, or it is not
                allowed; nothing was changed.
            EdgeError: it failed, or nobody knows whether it was accepted.
        """
        if replicas < 0:
            raise RefusedError(f"a size is 0 or more, not {replicas}")
        other = await self._other()
        if other:
            raise RefusedError(
                f"{self._label} is not scaled: {other} scales it too; remove one of the two, or say "
                "despite_autoscalers: true"
            )
        found = await self._found()
        desired = self._desired(found)
        base = desired if self._shown is None else self._shown
        try:
            async with asyncio.timeout(self._api.access.timeout):
                self._left, self._asked = "", None
                if self._spec.choose_pods and replicas < desired:
                    self._left = await self._choose(found, desired - replicas)
                await self._request(found, base, replicas)
        except RefusedError:
            self._asked = None
            raise
        except TimeoutError as error:
            raise EdgeTimeoutError(
                f"{self._label} was asked to have {replicas} replicas, but the API server did not answer in time: "
                "nobody knows whether that was accepted"
            ) from error

    async def diagnose(self) -> Sequence[Finding]:
        """Ask the API server what we may do, and look for who else scales the same.

        Raises:
            EdgeError: it cannot be asked.
        """
        findings: list[Finding] = []
        other = await self._other()
        for ask, severity, cost in self._needs():
            if not await self._may(ask):
                remedy = "add the rule to the Role of the daemon's service account (see deploy/kubernetes)"
                findings.append(Finding(severity, self._label, f"no permission: {ask}", cost, remedy))
        if other:
            findings.append(
                Finding(
                    Severity.ERROR,
                    self._label,
                    f"{other} scales it too",
                    "nothing is scaled by this daemon; if it were, both would undo what the other does",
                    "remove one of the two, or say despite_autoscalers: true",
                )
            )
        found = await self._found()
        waits = _at(found, "spec.minReadySeconds")
        if isinstance(waits, int) and waits:
            findings.append(
                Finding(
                    Severity.INFO,
                    self._label,
                    f"minReadySeconds is {waits}",
                    "a rollout takes longer; for the daemon a pod counts as soon as it is ready",
                    "leave it out unless rollouts need it",
                )
            )
        return findings

    @property
    def _custom(self) -> bool:
        return self._spec.resource not in APPS

    async def _found(self) -> Json:
        """The object as the watch has shown it. Raises EdgeError when it is stale, missing or going."""
        await self._things.fresh()
        found = self._things.objects.get(self._key)
        if found is None:
            raise RefusedError(
                f"there is no {self._spec.name} among the {self._spec.what} in namespace {self._key[0]}: "
                "look at name, resource and namespace"
            )
        if "deletionTimestamp" in found["metadata"]:
            raise RefusedError(f"{self._label} is being deleted")
        return found

    def _desired(self, found: Json) -> int:
        written = self._things.written(self._key)
        if written is not None:
            return written[1]
        size = _at(found, self._spec.replicas_path)
        if not _is_size(size):
            raise AnswerError(
                f"{self._label} has {'no size' if size is None else repr(size)} at {self._spec.replicas_path}; set it "
                "there, or let replicas_path be what its CRD says under specReplicasPath"
            )
        return size  # type: ignore[return-value] # it is an int: see _is_size

    def _changed(self, found: Json, desired: int) -> Sequence[str]:
        """That somebody else has changed the size since it was last told, and who, where that is known."""
        if self._things.written(self._key) is not None:
            return ()  # the watch has yet to say who it was
        before, self._told = self._told, desired
        if before is None or desired in {before, self._asked}:
            return ()
        who = found["metadata"].get("manager")
        return (f"the size was changed from {before} to {desired} by {who or 'somebody else'}",)

    async def _learn_scale(self, found: Json, desired: int) -> None:
        """Hold `replicas_path` against the scale subresource, and learn which pods are selected.

        Once, or, while it does not say which (an operator that has yet to start the job), after each change.
        """
        if self._selector or self._learned == version_of(found):
            return
        scale = await self._api.call(self._ask("get", "scale"))
        if version_of(scale) != version_of(found):
            if self._pods is None and not self._spec.ready_path:
                raise UnavailableError(f"{self._label} is changing too fast to be compared with its scale subresource")
            return
        size = _scale_size(scale)
        if size != desired:
            raise AnswerError(
                f"{self._label} has the size {desired} at {self._spec.replicas_path}, but its scale subresource says "
                f"{size}; let replicas_path be what its CRD says under specReplicasPath"
            )
        self._selector = str((scale.get("status") or {}).get("selector") or "")
        self._learned = version_of(scale)

    async def _ready(self, found: Json, desired: int) -> int:
        if not self._custom:
            ready = _at(found, "status.readyReplicas")  # which is left out when it is 0
            return ready if isinstance(ready, int) else 0
        path = self._spec.ready_path
        if path:
            ready = _at(found, path)
            above = _at(found, path.rpartition(".")[0])
            if ready is None and isinstance(above, dict):
                return 0  # Kubernetes leaves out what is 0
            if not _is_size(ready):
                raise AnswerError(
                    f"{self._label} has {ready!r} at {path}, expected a number of replicas; see ready_path"
                )
            return ready  # type: ignore[return-value] # it is an int: see _is_size
        if not self._selector:
            if desired == 0:
                return 0
            raise AnswerError(
                f"the scale subresource of {self._label} does not say which pods it has: its controller has yet to "
                "fill that in; if it never does, give ready_path, where it shows how many replicas are ready"
            )
        if self._pods is None:
            scope = Scope(PODS, pods.keep_pod, self._key[0], labels=self._selector)
            self._pods = await self._stack.enter_async_context(self._watches.lease(scope))
        await self._pods.fresh()
        return sum(map(pods.is_ready, self._pods.objects.values()))

    async def _other(self) -> str:
        """Who else scales the same, or empty. What may not be seen was told to the log when it was found out.

        Raises:
            EdgeError: that is not known yet.
        """
        kind = APPS.get(self._spec.resource) or self._things.kind
        for others in self._others:
            await others.tried()
            if not others.known:
                ask = others.scope.ask("list")
                raise UnavailableError(
                    f"whether another controller scales {self._label} too is not known yet: {ask}: {others.error}"
                )
            for other in others.find((self._key[0], self._spec.what.group, kind, self._key[1])):
                name = other["metadata"]["name"]
                return f"the {'KEDA ScaledObject' if others.scope.resource is SCALED_OBJECTS else others.kind} {name}"
        return ""

    async def _why_short(self, found: Json, desired: int, ready: int) -> Sequence[str]:
        """Why not all replicas are up. Pods are looked at no more often than every ten seconds."""
        if ready >= desired:
            self._reasons = ()
            return ()
        created = pods.not_created(found)
        now = asyncio.get_running_loop().time()
        if now - self._looked >= LOOK and self._watches.looks():
            self._looked = now
            try:
                async with asyncio.timeout(min(LOOKING, self._api.access.timeout)):
                    self._reasons = await self._look(found, desired)
            except TimeoutError:
                self._reasons = ()
            except EdgeError as error:
                self._reasons = (f"why pods do not come up is not known: {error}",)
        return (*([created] if created else []), *self._reasons)

    async def _look(self, found: Json, desired: int) -> tuple[str, ...]:
        seen = await pods.pods_of(self._api, self._key[0], self._selected(found))
        reasons = pods.why_not_up(seen)
        # Events are kept for an hour: where all pods exist, they tell of the past.
        if len(seen) < desired and (self._custom or self._spec.resource == "statefulsets"):
            kind = APPS.get(self._spec.resource) or self._things.kind
            created = await pods.failed_create(self._api, *self._key, kind)
            if created:
                reasons = [created, *reasons]
        return tuple(reasons)

    def _selected(self, found: Json) -> str:
        """The selector of its pods. Raises AnswerError when there is none: then it would be all pods."""
        selector = self._selector if self._custom else pods.selector_text(_at(found, "spec.selector") or {})  # type: ignore[arg-type] # an object: the API checks it
        if not selector:
            raise AnswerError(f"{self._label} does not say which pods it has")
        return selector

    async def _choose(self, found: Json, going: int) -> str:
        """Mark the pods that are to go. Returns why that was not possible, as the size counts more than who goes."""
        try:
            async with asyncio.timeout(self._api.access.timeout * CHOOSING):
                if self._workforce is None:
                    return "no engine names the workers, so Kubernetes chooses which pods go"
                workers = await self._workforce().workers()
                found_pods = await pods.pods_of(self._api, self._key[0], self._selected(found))
                return await pods.choose(self._api, found_pods, workers, going)
        except TimeoutError:
            return "Kubernetes chooses which pods go: there was no time left to mark them"
        except EdgeError as error:
            return f"Kubernetes chooses which pods go: {error}"

    async def _request(self, found: Json, base: int, replicas: int) -> None:
        """Ask for a size as long as it is `base`."""
        written = self._things.written(self._key)
        version = version_of(found) if written is None else written[0]
        size = self._desired(found)
        for _ in range(CONFLICTS):
            if size not in {base, replicas}:
                raise RefusedError(
                    f"{self._label} was changed from {base} to {size} replicas by somebody else since this was "
                    f"decided; {replicas} was not asked for"
                )
            try:
                self._asked = replicas  # until an answer comes; it may be accepted without one
                body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
                scale = await self._api.call(self._ask("patch", "scale"), body=body)
                size = _scale_size(scale)
                if size != replicas:
                    raise AnswerError(
                        f"{self._label} was asked to have {replicas} replicas and was given {size}: look for an "
                        "admission webhook that changes it"
                    )
            except ConflictError:
                # Something has changed, though maybe not the size; and it may be that we have, with the answer lost.
                scale = await self._api.call(self._ask("get", "scale"))
                size = _scale_size(scale)
                version = version_of(scale)
                if size != replicas:
                    self._asked = None
                    self._things.wrote(self._key, version, size)  # the watch may not have come as far
                    continue
            self._asked = None
            self._things.wrote(self._key, version_of(scale), replicas)
            self._shown = self._told = replicas
            return
        raise UnavailableError(
            f"{self._label} changed {CONFLICTS} times while {replicas} replicas were asked for; nothing was changed"
        )

    def _ask(self, verb: str, subresource: str = "") -> Ask:
        return Ask(verb, self._spec.what, *self._key, subresource)

    def _needs(self) -> Sequence[tuple[Ask, Severity, str]]:
        """What must be allowed, and what it costs when it is not."""
        namespace, error, warning = self._key[0], Severity.ERROR, Severity.WARNING
        counts = self._custom and not self._spec.ready_path
        blind = "why pods do not come up cannot be told"
        asks = [
            (self._things.scope.ask("list"), error, "the size cannot be read"),
            (self._things.scope.ask("watch"), error, "the size cannot be read"),
            (self._ask("get", "scale"), error, "a change by somebody else cannot be told from a lost answer"),
            (self._ask("patch", "scale"), error, "nothing can be scaled"),
            (Ask("list", PODS, namespace), error if counts else warning, "pods cannot be counted" if counts else blind),
        ]
        if counts:
            asks.append((Ask("watch", PODS, namespace), error, "pods cannot be counted"))
        if self._custom or self._spec.resource == "statefulsets":
            asks.append((Ask("list", EVENTS, namespace), warning, blind))
        if self._spec.choose_pods:
            asks.append((Ask("patch", PODS, namespace), warning, "Kubernetes chooses which pods go"))
        for others in self._others:
            if not isinstance(others.error, AbsentError):
                unseen = "another controller on the same target is not noticed"
                asks += [(others.scope.ask(verb), warning, unseen) for verb in ("list", "watch")]
        return asks

    async def _may(self, ask: Ask) -> bool:
        attributes = {
            "verb": ask.verb,
            "group": ask.resource.group,
            "version": ask.resource.version,
            "resource": ask.resource.plural,
            "subresource": ask.subresource,
            "namespace": ask.namespace,
            "name": ask.name,
        }
        review = {
            "apiVersion": f"{REVIEWS.group}/{REVIEWS.version}",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        answer = await self._api.call(Ask("create", REVIEWS), body=review)
        return (answer.get("status") or {}).get("allowed") is True


def _at(found: object, path: str) -> object:
    """What lies at keys joined by points; None when it is not there."""
    for key in path.lstrip(".").split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _scale_size(scale: Json) -> int:
    """The desired size in a Scale, which leaves out 0."""
    size = (scale.get("spec") or {}).get("replicas", 0)
    if not _is_size(size):
        raise AnswerError(f"a scale subresource has {size!r} as spec.replicas, expected a number")
    return int(size)


def _rollout(found: Json) -> Sequence[str]:
    """Whether pods of a Deployment or StatefulSet are being replaced by newer ones at present."""
    status = found["status"]
    if "updateRevision" in status and status["updateRevision"] == status.get("currentRevision"):
        return ()  # a StatefulSet that has come to rest
    updated, total = status.get("updatedReplicas"), status.get("replicas")
    if isinstance(updated, int) and isinstance(total, int) and updated < total:
        return (f"a rollout is under way: {updated} of {total} pods are of the newest version",)
    return ()


def _manager(found: Json) -> str:
    """Who set `spec.replicas` last, as `managedFields` tells; empty when it does not."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in found["metadata"].get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return max(entries)[1] if entries else ""


_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})  # as Go reads a bool; KEDA takes all else for true
_KEPT = ("name", "namespace", "resourceVersion", "deletionTimestamp")


def _keep_workload(found: Json) -> Json:
    """A Deployment, StatefulSet or ReplicaSet without what makes it large."""
    spec = found.get("spec") or {}
    metadata = {name: found["metadata"][name] for name in _KEPT if name in found["metadata"]}
    return {
        "metadata": {**metadata, "manager": _manager(found)},
        "spec": {name: spec[name] for name in ("replicas", "selector", "minReadySeconds") if name in spec},
        "status": found.get("status") or {},
    }


def _keep_custom(found: Json) -> Json:
    """A custom resource, whose size may be anywhere."""
    metadata = {name: found["metadata"][name] for name in _KEPT if name in found["metadata"]}
    return {"metadata": metadata, "spec": found.get("spec") or {}, "status": found.get("status") or {}}


def _keep_autoscaler(found: Json) -> Json:
    """What an HPA or a ScaledObject scales, and whether it is paused."""
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
    """KEDA takes a Deployment where nothing else is said."""
    if kept["paused"]:
        return None
    reference = kept["scaleTargetRef"]
    group = str(reference.get("apiVersion") or "apps/v1").rpartition("/")[0]
    return kept["metadata"].get("namespace"), group, reference.get("kind") or "Deployment", reference.get("name")
