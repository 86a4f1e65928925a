"""A server that behaves like a Kubernetes API server with the controllers that create pods, as far as tests need it.

It has the scale and status subresources, resource versions with conflicts, merge patches, paged lists, watches with
bookmarks and expired versions, RBAC by verb and resource name, quotas, and faults on demand.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]
Key = tuple[str, str]
COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True)
class Kind:
    """A kind of object. `scale`: paths of the desired size, the observed size and the selector."""

    group: str
    version: str
    plural: str
    kind: str
    scale: tuple[str, str, str] | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_APPS = ("spec.replicas", "status.replicas", "spec.selector")
NAMESPACES = Kind("", "v1", "namespaces", "Namespace")
PODS = Kind("", "v1", "pods", "Pod")
EVENTS = Kind("", "v1", "events", "Event")
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")
DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment", _APPS)
STATEFUL_SETS = Kind("apps", "v1", "statefulsets", "StatefulSet", _APPS)
REPLICA_SETS = Kind("apps", "v1", "replicasets", "ReplicaSet", _APPS)
HPAS = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
STREAMS = Kind("reactive-autoscaler.internal", "v1alpha1", "streamautoscalers", "StreamAutoscaler")
SCALED_OBJECTS = Kind("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")
FLINK = Kind(
    "flink.apache.org",
    "v1beta1",
    "flinkdeployments",
    "FlinkDeployment",
    ("spec.taskManager.replicas", "status.taskManager.replicas", "status.taskManager.labelSelector"),
)
REVIEWS = Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
WORKLOADS = (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, FLINK)
BUILT_IN = (NAMESPACES, PODS, EVENTS, QUOTAS, DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, HPAS, REVIEWS)


class Refusal(Exception):  # noqa: N818 - what the API calls a Status
    """An error response."""

    def __init__(self, code: int, reason: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_after = code, reason, retry_after

    @property
    def status(self) -> Json:
        details = {} if self.retry_after is None else {"details": {"retryAfterSeconds": self.retry_after}}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
            **details,
        }


@dataclass(frozen=True)
class Request:
    """One request, in the terms of RBAC."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    at: float = field(compare=False)

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


@dataclass
class Fault:
    """A fault instead of an answer, or before it.

    Attributes:
        to: the affected requests.
        act: `refuse` (with `refusal`), `drop` (no answer), `lose` (executed, but no answer), `slow`, `mute` (a watch
            that begins and sends nothing), `nonsense` (not JSON), `cut` (a watch that ends within a line).
        times: how often.
    """

    to: Callable[[Request], bool]
    act: str
    refusal: Refusal | None = None
    seconds: float = 0.0
    times: int = 1


@dataclass
class Grants:
    """The rights of a user: rules of Roles with their namespace (empty: of ClusterRoles), and the used ones."""

    rules: list[tuple[str, Json]]
    used: set[tuple[int, str, str, str]] = field(default_factory=set)

    def allow(self, verb: str, group: str, resource: str, namespace: str, name: str) -> bool:
        allowed = False
        for number, (where, rule) in enumerate(self.rules):
            names = rule.get("resourceNames")
            if (
                where in {"", namespace}
                and group in rule["apiGroups"]
                and resource in rule["resources"]
                and verb in rule["verbs"]
                and (not names or name in names)
            ):
                self.used.add((number, group, resource, verb))
                allowed = True
        return allowed

    @property
    def unused(self) -> set[tuple[int, str, str, str]]:
        granted = {
            (number, group, resource, verb)
            for number, (_, rule) in enumerate(self.rules)
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        return granted - self.used


class ApiServer:
    """The server. Tokens name users; `admin` may do everything.

    Attributes:
        requests: all requests of other users than admin.
        faults: the next faults.
        bookmarks: seconds between bookmarks of a watch.
        startup: seconds until a new pod is ready; None: until a test makes it ready.
        url: its address.
        routes: additional routes.
    """

    def __init__(self) -> None:
        self.kinds: list[Kind] = [*BUILT_IN]
        self.objects: dict[Kind, dict[Key, Json]] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.users: dict[str, Grants | None] = {"admin": None}
        self.bookmarks = 0.2
        self.startup: float | None = None
        self.url = ""
        self.routes: list[web.RouteDef] = []
        self._version = 100
        self._kept_from = 0
        self._log: list[tuple[int, str, Kind, Json, Json | None]] = []  # version, event, kind, the object, before
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._closing = False
        self._changed = asyncio.Event()
        self._watches: dict[int, tuple[web.Request, Kind]] = {}
        self._numbers = itertools.count(1)
        self._starting: set[asyncio.TimerHandle] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ApiServer]:
        app = web.Application(client_max_size=16 * 2**20)
        app.add_routes(self.routes)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            for timer in self._starting:
                timer.cancel()
            self._closing = True
            self._changed.set()  # so that the watches see it
            await runner.cleanup()

    def asked(self, verb: str, kind: Kind | None = None) -> list[Request]:
        """The requests with this verb."""
        return [seen for seen in self.requests if seen.verb == verb and kind in {None, seen.kind}]

    def fault(self, verb: str, act: str, kind: Kind | None = None, *, sub: str | None = None, **more: Any) -> Fault:
        """Fail the next request of this verb (`*`: any)."""

        def to(request: Request) -> bool:
            return verb in {"*", request.verb} and kind in {None, request.kind} and sub in {None, request.subresource}

        found = Fault(to, act, **more)
        self.faults.append(found)
        return found

    def cut_watches(self, kind: Kind | None = None) -> int:
        """Break all watches off; returns their number."""
        cut = [request for request, of in self._watches.values() if kind in {None, of}]
        for request in cut:
            if request.transport is not None:
                request.transport.abort()
        return len(cut)

    @property
    def watches(self) -> list[Kind]:
        """The running watches."""
        return [kind for _, kind in self._watches.values()]

    def compact(self) -> None:
        """Forget all versions before the present one: a watch from an older one gets 410."""
        self._version += 1
        self._kept_from = self._version
        self._log.clear()
        self._pages.clear()

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        found = self.objects.get(kind, {}).get((namespace, name))
        if found is None:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def put(self, kind: Kind, found: Json, event: str = "MODIFIED") -> Json:
        """Store an object under a new version and notify the watches."""
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        key = (found["metadata"].get("namespace", ""), found["metadata"]["name"])
        of_kind = self.objects.setdefault(kind, {})
        before = of_kind.get(key)
        if event == "DELETED":
            of_kind.pop(key, None)
        else:
            of_kind[key] = found
        self._log.append((self._version, event, kind, copy.deepcopy(found), copy.deepcopy(before)))
        self._changed.set()
        self._changed = asyncio.Event()
        return found

    def create(self, kind: Kind, found: Json, namespace: str) -> Json:
        """Create an object, with the fields that a real server fills in."""
        if kind not in self.kinds:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        found = {"apiVersion": kind.api_version, "kind": kind.kind, **copy.deepcopy(found)}
        metadata = found.setdefault("metadata", {})
        if kind is not NAMESPACES:
            metadata["namespace"] = namespace
        if "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{next(self._numbers):05}"
        if (metadata.get("namespace", ""), metadata["name"]) in self.objects.get(kind, {}):
            raise Refusal(409, "AlreadyExists", f'{kind} "{metadata["name"]}" already exists')
        metadata["uid"] = f"uid-{next(self._numbers)}"
        metadata["creationTimestamp"] = _now()
        metadata["generation"] = 1
        found.setdefault("status", {})
        if kind in {DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS}:
            found["spec"].setdefault("replicas", 1)
        self.put(kind, found, "ADDED")
        self._reconcile(namespace)
        return found

    def delete(self, kind: Kind, namespace: str, name: str) -> Json:
        found = self.get(kind, namespace, name)
        self.put(kind, found, "DELETED")
        if kind is NAMESPACES:
            for other, objects in list(self.objects.items()):
                for key in [key for key in objects if key[0] == name]:
                    self.put(other, objects[key], "DELETED")
        else:
            self._reconcile(namespace)
        return found

    # -- requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            asked, body = await self._parse(request)
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            grants = self._grants(token)
            if token != "admin":
                self.requests.append(asked)
            fault = next((fault for fault in self.faults if fault.times > 0 and fault.to(asked)), None)
            if fault is not None and token != "admin":
                fault.times -= 1
                answer = await self._spoil(request, asked, body, grants, fault)
                if answer is not None:
                    return answer
            if asked.verb == "watch":
                self._authorize(grants, token, asked)
                return await self._watch(request, asked)
            return web.json_response(self._answer(asked, body, grants, token))
        except Refusal as refusal:
            headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
            return web.json_response(refusal.status, status=refusal.code, headers=headers)

    def _grants(self, token: str) -> Grants | None:
        if token not in self.users:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return self.users[token]

    async def _spoil(
        self, request: web.Request, asked: Request, body: Json, grants: Grants | None, fault: Fault
    ) -> web.StreamResponse | None:
        if fault.act == "refuse":
            assert fault.refusal is not None
            raise fault.refusal
        if fault.act == "nonsense":
            return web.Response(text="<html>welcome to the proxy</html>", content_type="text/html")
        if fault.act == "slow":
            await asyncio.sleep(fault.seconds)
            return None
        if fault.act in {"mute", "cut"}:
            return await self._bad_watch(request, asked, fault)
        if fault.act == "lose":
            self._answer(asked, body, grants, "another-client")
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _bad_watch(self, request: web.Request, asked: Request, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        assert request.transport is not None
        if fault.act == "cut":
            await response.write(b'{"type":"MODIFIED","object":{"metadata":{"na')
            request.transport.abort()
            return response
        self._watches[id(request)] = (request, asked.kind)
        try:
            while not request.transport.is_closing():  # noqa: ASYNC110 - no event of the peer
                await asyncio.sleep(0.02)
        finally:
            del self._watches[id(request)]
        return response

    async def _parse(self, request: web.Request) -> tuple[Request, Json]:
        parts = request.path.strip("/").split("/")
        if parts[0] == "api":
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        known = (k for k in self.kinds if (k.group, k.version, k.plural) == (group, version, rest[0]))
        kind = next(known, Kind(group, version, rest[0], ""))
        name = rest[1] if len(rest) > 1 else ""
        query = dict(request.query)
        verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}
        verb = verbs.get(request.method) or ("watch" if query.get("watch") else "get" if name else "list")
        if not name:
            name = _fields(query).get("metadata.name", "")
        body: Json = {}
        if request.method in {"POST", "PATCH"}:
            if verb == "patch" and request.content_type != "application/merge-patch+json":
                raise Refusal(415, "UnsupportedMediaType", f"{request.content_type} is not supported")
            body = json.loads(await request.read())
        sub = rest[2] if len(rest) > 2 else ""
        return Request(verb, kind, namespace, name, sub, query, time.time()), body

    def _authorize(self, grants: Grants | None, user: str, asked: Request) -> None:
        """Check the rights, before whether the object exists."""
        words = (asked.verb, asked.kind.group, asked.resource, asked.namespace, asked.name)
        if grants is not None and asked.kind is not REVIEWS and not grants.allow(*words):
            where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
            raise Refusal(
                403,
                "Forbidden",
                f'{asked.kind} "{asked.name}" is forbidden: User "{user}" cannot {asked.verb} resource '
                f'"{asked.resource}" in API group "{asked.kind.group}" {where}',
            )
        if asked.kind not in self.kinds:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _answer(self, asked: Request, body: Json, grants: Grants | None, user: str) -> Json:
        self._authorize(grants, user, asked)
        kind = asked.kind
        match asked.verb, asked.subresource:
            case "list", "":
                return self._list(asked)
            case "create", "" if kind is REVIEWS:
                return self._review(body, grants)
            case "create", "":
                if kind is not NAMESPACES and ("", asked.namespace) not in self.objects.get(NAMESPACES, {}):
                    raise Refusal(404, "NotFound", f'namespaces "{asked.namespace}" not found')
                return self.create(kind, body, asked.namespace)
            case "get", "":
                return self.get(kind, asked.namespace, asked.name)
            case "get", "scale":
                return self._scale(kind, self.get(kind, asked.namespace, asked.name))
            case "patch", "scale":
                return self._patch_scale(asked, body)
            case "patch", ("" | "status"):
                return self._patch(asked, body)
            case "delete", "":
                return self.delete(kind, asked.namespace, asked.name)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _review(self, body: Json, grants: Grants | None) -> Json:
        asks = body["spec"]["resourceAttributes"]
        resource = asks["resource"] + (f"/{asks['subresource']}" if asks.get("subresource") else "")
        words = (asks["verb"], asks.get("group", ""), resource, asks.get("namespace", ""), asks.get("name", ""))
        before = set() if grants is None else set(grants.used)
        allowed = grants is None or grants.allow(*words)
        if grants is not None:
            grants.used = before  # asking for rights does not use them
        return {**body, "status": {"allowed": allowed}}

    def _list(self, asked: Request) -> Json:
        token = asked.query.get("continue")
        if token:
            if token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
            version, items = self._pages.pop(token)
        else:
            version = self._version
            items = [
                found for key, found in sorted(self.objects.get(asked.kind, {}).items()) if _selected(asked, found)
            ]
        limit = int(asked.query.get("limit", "0")) or len(items)
        page, rest = items[:limit], items[limit:]
        metadata: Json = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"page-{next(self._numbers)}"
            metadata["remainingItemCount"] = len(rest)
            self._pages[metadata["continue"]] = (version, rest)
        bare = [{k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in page]
        items = page if "." in asked.kind.group else bare  # typed lists omit them
        return {
            "kind": f"{asked.kind.kind}List",
            "apiVersion": asked.kind.api_version,
            "metadata": metadata,
            "items": items,
        }

    async def _watch(self, request: web.Request, asked: Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        version = int(asked.query.get("resourceVersion") or self._version)
        ends = time.monotonic() + float(asked.query.get("timeoutSeconds", "1800"))
        marks = asked.query.get("allowWatchBookmarks") == "true"
        self._watches[id(request)] = (request, asked.kind)
        try:
            while time.monotonic() < ends and not self._closing:
                if version < self._kept_from:
                    gone = Refusal(410, "Expired", f"too old resource version: {version} ({self._kept_from})")
                    await _send(response, "ERROR", gone.status)
                    break
                changed = self._changed
                for number, event, kind, found, before in self._log:
                    if number > version and kind is asked.kind:
                        seen = _seen(asked, event, found, before)
                        if seen:
                            await _send(response, seen, found)
                version = self._version
                try:
                    async with asyncio.timeout(min(self.bookmarks, max(0.0, ends - time.monotonic()))):
                        await changed.wait()
                except TimeoutError:
                    if marks:
                        mark = {"kind": asked.kind.kind, "metadata": {"resourceVersion": str(version)}}
                        await _send(response, "BOOKMARK", mark)
        except ConnectionResetError:
            pass
        finally:
            del self._watches[id(request)]
        return response

    def _scale(self, kind: Kind, found: Json) -> Json:
        if kind.scale is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        spec, seen, selector = (_at(found, path) for path in kind.scale)
        if spec is None:
            raise Refusal(404, "NotFound", f"the spec replicas field {kind.scale[0]!r} does not exist")
        status: Json = {"replicas": seen or 0}
        if selector:
            status["selector"] = selector if isinstance(selector, str) else _labels(selector)
        kept = {name: found["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        body: Json = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": kept, "spec": {}, "status": status}
        if spec:
            body["spec"]["replicas"] = spec
        return body

    def _patch_scale(self, asked: Request, body: Json) -> Json:
        found = self.get(asked.kind, asked.namespace, asked.name)
        before = self._scale(asked.kind, found)
        after = _merged(before, body)
        self._check_version(asked, found, after)
        size = after["spec"].get("replicas", 0)
        if not isinstance(size, int) or size < 0:
            raise Refusal(422, "Invalid", f'Scale "{asked.name}" is invalid: spec.replicas: must be 0 or more')
        assert asked.kind.scale is not None
        if _at(found, asked.kind.scale[0]) != size:
            after = copy.deepcopy(found)
            _set(after, asked.kind.scale[0], size)
            self._managed(asked, after)
            self._store(asked.kind, after)
        return self._scale(asked.kind, self.get(asked.kind, asked.namespace, asked.name))

    def _patch(self, asked: Request, body: Json) -> Json:
        found = self.get(asked.kind, asked.namespace, asked.name)
        after = _merged(found, body)
        self._check_version(asked, found, after)
        if asked.subresource == "status":
            after = {**found, "metadata": {**found["metadata"]}, "status": after.get("status", {})}
        elif asked.kind is not PODS:
            after["status"] = found.get("status", {})
        if after != found:
            if asked.kind.scale is not None and _at(body, asked.kind.scale[0]) is not None:
                self._managed(asked, after)
            self._store(asked.kind, after)
        return self.get(asked.kind, asked.namespace, asked.name)

    def _check_version(self, asked: Request, found: Json, after: Json) -> None:
        if after["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {asked.kind} "{asked.name}": the object has been modified; please '
                "apply your changes to the latest version and try again",
            )

    def _managed(self, asked: Request, found: Json) -> None:
        """Record who set the size, as the kind does, beside the manager of everything else."""
        assert asked.kind.scale is not None
        fields: Json = {}
        _set(fields, ".".join(f"f:{key}" for key in asked.kind.scale[0].split(".")), {})
        entry = {
            "manager": asked.query.get("fieldManager", "unknown"),
            "operation": "Update",
            "subresource": asked.subresource,
            "time": _now(),
            "fieldsV1": fields,
        }
        status = {"manager": "the-controller", "time": "9999-01-01T00:00:00Z", "fieldsV1": {"f:status": {}}}
        found["metadata"]["managedFields"] = [entry, status]

    def _store(self, kind: Kind, after: Json) -> None:
        before = self.get(kind, after["metadata"].get("namespace", ""), after["metadata"]["name"])
        if before.get("spec") != after.get("spec"):
            after["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        self.put(kind, after)
        self._reconcile(after["metadata"].get("namespace", ""))

    # -- controllers

    def _reconcile(self, namespace: str) -> None:
        for kind in WORKLOADS:
            for key in [key for key in self.objects.get(kind, {}) if key[0] == namespace]:
                self._reconcile_one(kind, self.objects[kind][key])
        for key, pod in list(self.objects.get(PODS, {}).items()):
            owner = pod["metadata"].get("owner")
            if key[0] == namespace and owner and (namespace, owner[1]) not in self.objects.get(_kind(owner[0]), {}):
                self.put(PODS, pod, "DELETED")

    def _reconcile_one(self, kind: Kind, found: Json) -> None:
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        assert kind.scale is not None
        wanted = _at(found, kind.scale[0])
        if wanted is None:
            return
        mine = self._pods(kind, namespace, name)
        failure = ""
        while len(mine) > wanted:
            going = mine[-1] if kind is STATEFUL_SETS else min(mine, key=_goes_first)
            mine.remove(going)
            self.put(PODS, going, "DELETED")
        while len(mine) < wanted and not failure:
            failure = self._quota(namespace)
            if not failure:
                mine.append(self._new_pod(kind, found, len(mine)))
        ready = sum(map(_ready, mine))
        if kind is FLINK:
            status: Json = {"taskManager": {"replicas": wanted, "labelSelector": f"app={name},component=taskmanager"}}
        else:
            status = {"observedGeneration": found["metadata"]["generation"]}
            status |= {
                name: count
                for name, count in (("replicas", len(mine)), ("updatedReplicas", len(mine)), ("readyReplicas", ready))
                if count and (name, kind) != ("updatedReplicas", REPLICA_SETS)
            }
            if kind is STATEFUL_SETS:
                status |= {"currentRevision": "1", "updateRevision": "1"}
            elif failure:
                status["conditions"] = [
                    {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure}
                ]
        if failure and kind is STATEFUL_SETS:
            self._event(kind, namespace, name, f"create Pod in StatefulSet {name} failed error: {failure}")
        if status != found.get("status"):
            self.put(kind, {**found, "metadata": {**found["metadata"]}, "status": status})

    def _pods(self, kind: Kind, namespace: str, name: str) -> list[Json]:
        found = self.objects.get(PODS, {}).items()
        return [pod for key, pod in found if key[0] == namespace and pod["metadata"].get("owner") == [kind.kind, name]]

    def _new_pod(self, kind: Kind, owner: Json, number: int) -> Json:
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        serial = next(self._numbers)
        if kind is FLINK:
            labels = {"app": name, "component": "taskmanager"}
        else:
            labels = dict(owner["spec"]["template"]["metadata"]["labels"])
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{number}" if kind is STATEFUL_SETS else f"{name}-{serial:05}",
                "namespace": namespace,
                "labels": labels,
                "creationTimestamp": _now(),
                "owner": [kind.kind, name],
                "serial": serial,
            },
            "spec": {},
            "status": {"phase": "Pending"},
        }
        if self.startup is not None:
            timer = asyncio.get_running_loop().call_later(
                self.startup,
                lambda: self.start(namespace, str(pod["metadata"]["name"])),  # type: ignore[index]
            )
            self._starting.add(timer)
        return self.put(PODS, pod, "ADDED")

    def start(self, namespace: str, name: str) -> None:
        """Make a pod ready."""
        pod = self.objects.get(PODS, {}).get((namespace, name))
        if pod is None:
            return
        number = next(self._numbers)
        address = f"10.0.{number // 250}.{number % 250 + 1}"
        status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
        self._store(PODS, {**pod, "metadata": {**pod["metadata"]}, "status": status})

    def _quota(self, namespace: str) -> str:
        pods = sum(key[0] == namespace for key in self.objects.get(PODS, {}))
        for key, quota in self.objects.get(QUOTAS, {}).items():
            hard = quota["spec"]["hard"].get("pods")
            if key[0] == namespace and hard is not None and pods >= int(hard):
                name = quota["metadata"]["name"]
                number = next(self._numbers)
                return (
                    f'pods "pod-{number}" is forbidden: exceeded quota: {name}, requested: pods=1, used: pods={pods}, '
                    f"limited: pods={hard}"
                )
        return ""

    def _event(self, kind: Kind, namespace: str, name: str, message: str) -> None:
        event = {
            "metadata": {"name": f"{name}.{next(self._numbers)}", "namespace": namespace},
            "involvedObject": {"kind": kind.kind, "name": name, "namespace": namespace},
            "reason": "FailedCreate",
            "message": message,
            "type": "Warning",
            "lastTimestamp": _now(),
        }
        self.put(EVENTS, event, "ADDED")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def _send(response: web.StreamResponse, event: str, found: Json) -> None:
    await response.write(json.dumps({"type": event, "object": found}).encode() + b"\n")


def _kind(name: str) -> Kind:
    return next(kind for kind in WORKLOADS if kind.kind == name)


def _fields(query: Mapping[str, str]) -> dict[str, str]:
    text = query.get("fieldSelector", "")
    return dict(part.split("=", 1) for part in text.split(",") if part)


def _seen(asked: Request, event: str, found: Json, before: Json | None) -> str:
    """The event for a watch with a selector: an object that no longer matches counts as deleted. Empty: no event."""
    matches, matched = _selected(asked, found), before is not None and _selected(asked, before)
    if event == "DELETED":
        return event if matches or matched else ""
    if matches:
        return event if event == "ADDED" or matched else "ADDED"
    return "DELETED" if matched else ""


def _selected(asked: Request, found: Json) -> bool:
    metadata = found["metadata"]
    if asked.namespace and metadata.get("namespace", "") != asked.namespace:
        return False
    if any(str(_at(found, path)) != value for path, value in _fields(asked.query).items()):
        return False
    labels = metadata.get("labels", {})
    wanted = [part for part in re.split(r",(?![^(]*\))", asked.query.get("labelSelector", "")) if part]
    return all(_matches(part.strip(), labels) for part in wanted)


def _matches(requirement: str, labels: Mapping[str, str]) -> bool:
    match re.fullmatch(r"(!?)([^\s=!]+)\s*(?:(==|=|!=)\s*(\S*)|(in|notin)\s*\((.*)\))?", requirement):
        case None:
            raise Refusal(400, "BadRequest", f"unable to parse requirement: {requirement}")
        case found:
            unless, key, sign, value, listed, values = found.groups()
    if listed:
        return (labels.get(key) in {each.strip() for each in values.split(",")}) == (listed == "in")
    if sign:
        return (labels.get(key) == value) == (sign != "!=")
    return (key in labels) != bool(unless)


def _labels(selector: Json) -> str:
    return ",".join(f"{key}={value}" for key, value in selector["matchLabels"].items())


def _ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def _goes_first(pod: Json) -> tuple[bool, int, int]:
    """A ReplicaSet removes unready pods first, then those with the least cost, then the newest."""
    cost = int(pod["metadata"].get("annotations", {}).get(COST, "0"))
    return _ready(pod), cost, -pod["metadata"]["serial"]


def _at(found: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def _set(found: Json, path: str, value: object) -> None:
    *above, last = path.split(".")
    for key in above:
        found = found.setdefault(key, {})
    found[last] = value


def _merged(base: Any, patch: Any) -> Any:
    """A merge patch by RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
