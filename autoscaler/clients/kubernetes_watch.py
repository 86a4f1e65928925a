"""Collections of an API server's objects. One list and one watch keep a collection up to date for all its users.

A collection lists once and then follows the watch. The watch ends after half of `max_age`, so that a silently lost
connection is noticed. A 410 (the API server no longer keeps the version) or a stalled watch leads to a new list. After
a lost connection the watch continues from the last version. The pauses between attempts grow and have jitter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from autoscaler.clients.kubernetes import (
    MAX_HOLD,
    Access,
    Api,
    BusyError,
    GoneError,
    Json,
    NotFoundError,
    Request,
    Resource,
    connect_api,
    refusal,
)
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, Shared, UnavailableError

_log = logging.getLogger("autoscaler.clients")

PAGE_SIZE = 500  # objects in one answer to a list
PAGE_TIMEOUT = 30.0  # seconds
FIRST_PAUSE = 0.5  # seconds
STABLE_AFTER = 5.0  # seconds that a watch must last before the pauses start again from the first one
MAX_PAUSE = 10.0  # seconds
MAX_REFUSED_PAUSE = 60.0  # seconds, when access is denied or there is no such resource: an administrator has to act
# Refusals in a row after which access counts as denied. They take 2 to 4 s: an API server that is starting refuses
# requests until it has read RBAC.
MAX_REFUSALS = 4
MAX_ABSENCES = 2  # 404s in a row that count as "no such resource": a starting API server may not serve CRDs yet
MAX_BUSY = 3  # 5xx in a row before a new list: the server may have been restored to a time before our version
POD_LIST_INTERVAL = 0.2  # seconds between two lists of pods for remarks, for all targets together

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The objects that a collection watches. Users with equal scopes share a collection.

    Attributes:
        resource: the resource type.
        keep: reduces an object to the fields to keep, including its name and version.
        namespace: empty for all.
        name: watch only this object; empty for all.
        labels: label selector; empty for all.
        index: returns a second key of an object, for `Collection.find`.
        optional: the resource may not exist, or access to it may be denied.
    """

    resource: Resource
    keep: Callable[[Json], Json]
    namespace: str = ""
    name: str = ""
    labels: str = ""
    index: Callable[[Json], Hashable] | None = None
    optional: bool = False

    def query(self) -> dict[str, object]:
        """The selectors as query parameters."""
        fields = {"fieldSelector": f"metadata.name={self.name}"} if self.name else {}
        return {**fields, **({"labelSelector": self.labels} if self.labels else {})}

    def request(self, verb: str) -> Request:
        """A request for these objects. RBAC takes the field selector as the object's name."""
        return Request(verb, self.resource, self.namespace, self.name)


class StalledError(UnavailableError):
    """A watch has stopped receiving events, even bookmarks."""


class Collection:
    """A collection of objects that is kept up to date.

    Attributes:
        objects: the objects as reduced by `keep`.
        kind: the `kind` of its objects, known after the first list.
        error: why the collection cannot be read now, or None.
        denied: whether so many requests in a row were refused that the resource or the permission must be missing.
        users: the number of users (see `Watches.lease`).
    """

    def __init__(self, api: Api, scope: Scope) -> None:
        self.scope = scope
        self.objects: dict[Key, Json] = {}
        self.kind = ""
        self.error: EdgeError | None = None
        self.denied = False
        self.users = 0
        self._api = api
        self._written: dict[Key, tuple[str, int]] = {}
        self._index: dict[Hashable, set[Key]] = {}
        self._version: str | None = None
        self._updated_at: float | None = None
        self._failures = 0
        self._refusals = 0
        self._short_lived = 0
        self._logged = False
        self._attempted = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"watch {scope.resource} {scope.namespace} {scope.name}")

    async def close(self) -> None:
        """Stop watching."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def attempted(self) -> None:
        """Wait until the first list has succeeded or failed. An optional collection must be refused several times.

        Raises:
            EdgeError: the wait exceeded the time-out.
        """
        if self._attempted.is_set():
            return
        try:
            async with asyncio.timeout(self._api.access.timeout):
                await self._attempted.wait()
        except TimeoutError as error:
            raise self.error or EdgeTimeoutError(
                f"the API server {self._api.server} did not answer within {self._api.access.timeout:g} s: "
                f"{self.scope.request('list')}"
            ) from error

    async def fresh(self) -> None:
        """Check that the objects are up to date.

        Raises:
            EdgeError: the collection was never read, or not updated for longer than `max_age`; the message says why.
        """
        await self.attempted()
        if self._updated_at is None:
            raise self.error or UnavailableError(f"{self.scope.request('list')} was not answered yet")
        silent = asyncio.get_running_loop().time() - self._updated_at
        if silent > self._api.access.max_age:
            cause = f": {self.error}" if self.error else ""
            text = f"{self.scope.request('watch')}: no event for {silent:.0f} s, the last known state is stale{cause}"
            raise (RefusedError if isinstance(self.error, RefusedError) else UnavailableError)(text)

    def find(self, index: Hashable) -> Sequence[Json]:
        """The objects under this index."""
        return [self.objects[key] for key in sorted(self._index.get(index, ()))]

    def wrote(self, key: Key, version: str, replicas: int) -> None:
        """Record the size and version that the API server answered to a write, until the watch reaches that version."""
        self._written[key] = (version, replicas)

    def written(self, key: Key) -> tuple[str, int] | None:
        """The version and size of the last write, or None once the watch has reached that version."""
        written, found = self._written.get(key), self.objects.get(key)
        if written and (found is None or not older(version_of(found), written[0])):
            del self._written[key]
            return None
        return written

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                if self._version is None:
                    async with self._api.lists:
                        await self._list()
                    self._attempted.set()
                await self._watch()
                # If the server ends every watch at once, there must be pauses between the requests.
                self._failures = 0 if loop.time() - begun >= FIRST_PAUSE else self._failures + 1
                self._short_lived = 0
                error: EdgeError | None = None
            except EdgeError as caught:
                error = caught
            except Exception as caught:  # noqa: BLE001 - a bug must not end the watch silently
                _log.exception("a watch failed", extra=self._log_extra)
                error = AnswerError(f"{self.scope.request('watch')} failed: {type(caught).__name__}: {caught}")
            if error is not None:
                # The pauses also grow for a watch that starts every time but fails soon.
                self._short_lived = 0 if loop.time() - begun >= STABLE_AFTER else self._short_lived + 1
                self._failures += 1
                self._failed(error)
            if self._failures:
                await asyncio.sleep(self._pause(error))

    def _pause(self, error: EdgeError | None) -> float:
        spread = random.uniform(0.5, 1)  # noqa: S311 - jitter, so that not all reconnect at once; no secret
        if isinstance(error, RefusedError):
            longest, times = MAX_REFUSED_PAUSE, self._refusals
        else:
            longest = min(MAX_PAUSE, self._api.access.max_age / 4)
            times = max(self._failures, self._short_lived if error else 0)
        pause = min(longest, FIRST_PAUSE * 2.0 ** min(times - 1, 10)) * spread
        retry_after = (error.after or 0.0) if isinstance(error, BusyError) else 0.0
        return max(pause, min(retry_after, MAX_HOLD))

    def _failed(self, error: EdgeError) -> None:
        # A throttled request (429) must not lead to a new list, which would load the server even more.
        answers = isinstance(error, BusyError) and not error.throttled and self._failures % MAX_BUSY == 0
        lost = isinstance(error, UnavailableError) and not isinstance(error, GoneError | StalledError)
        if self._updated_at is None or answers or not lost:
            self._version = None
        if (
            isinstance(error, NotFoundError) and self._failures > 1
        ):  # ignore a single 404, which may come from an API server that is starting
            self.objects, self._index = {}, {}
        # A single lost connection or expired version is normal for a watch.
        routine = self._failures == 1 and isinstance(error, UnavailableError) and self._updated_at is not None
        refused = isinstance(error, RefusedError)
        self._refusals = self._refusals + 1 if refused else 0
        absent = isinstance(error, NotFoundError)
        newly_denied = not self.denied and self._refusals >= (MAX_ABSENCES if absent else MAX_REFUSALS)
        self.denied = self.denied or newly_denied
        usual = self.scope.optional and absent  # such as ScaledObjects in a cluster without KEDA
        if not usual and (newly_denied or not (refused or routine or self._logged)):
            self._logged = True
            _log.warning("cannot watch", extra={**self._log_extra, "error": str(error)})
        if not routine:
            self.error = error
        if not (self.scope.optional and refused) or self.denied:
            self._attempted.set()

    def _updated(self) -> None:
        self._updated_at = asyncio.get_running_loop().time()
        self._failures = self._refusals = 0
        self.error, self.denied = None, False
        if self._logged:
            self._logged = False
            _log.info("watch resumed", extra=self._log_extra)

    @property
    def _log_extra(self) -> dict[str, str]:
        """The fields of a log record."""
        return {"resource": str(self.scope.resource), "namespace": self.scope.namespace, "object": self.scope.name}

    async def _list(self) -> None:
        found: dict[Key, Json] = {}
        following = version = ""
        known = dict(self._written)  # the list requested below includes these writes
        while True:
            query = {"limit": PAGE_SIZE, **self.scope.query(), **({"continue": following} if following else {})}
            answer = await self._api.fetch(self.scope.request("list"), query, limit=PAGE_TIMEOUT)
            try:
                for item in answer["items"] or ():
                    kept = self.scope.keep(item)
                    found[key_of(kept)] = kept
                version = str(answer["metadata"]["resourceVersion"])
                following = answer["metadata"].get("continue") or ""
                self.kind = str(answer["kind"]).removesuffix("List")
            except (KeyError, TypeError, AttributeError) as error:
                raise AnswerError(
                    f"{self.scope.request('list')} was not answered with a Kubernetes list: {error!r}"
                ) from error
            if not following:
                break
        self.objects = {}
        self._index = {}
        for key, kept in found.items():
            self._put(key, kept)
        self._written = {key: change for key, change in self._written.items() if known.get(key) != change}
        self._version = version
        self._updated_at = asyncio.get_running_loop().time()  # the watch, which may still fail, calls `_updated`

    async def _watch(self) -> None:
        """Follow the watch until the server ends it."""
        max_age = self._api.access.max_age
        request = self.scope.request("watch")
        spread = random.uniform(0.7, 1)  # noqa: S311 - jitter, so that watches do not end together; no secret
        query: dict[str, object] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": max(1, round(max_age / 2 * spread)),
            **self.scope.query(),
        }
        async with self._api.stream(request, query) as response:
            self._updated()
            while True:
                try:
                    async with asyncio.timeout(max_age * 0.75):
                        line = await response.content.readline()
                except TimeoutError as error:
                    raise StalledError(f"{request}: no event for {max_age * 0.75:g} s, not even a bookmark") from error
                except ValueError as error:
                    raise AnswerError(f"{request}: an event is too long: {error}") from error
                if not line.endswith(b"\n"):
                    return  # the watch has ended; the server sends an incomplete line again in the next watch
                self._apply(request, line)

    def _apply(self, request: Request, line: bytes) -> None:
        try:
            event = json.loads(line)
            what, found = event["type"], event["object"]
            if what == "ERROR":
                raise refusal(request, int(found.get("code", 500)), str(found.get("message", "")), self._api.server)
            version = str(found["metadata"]["resourceVersion"])
            if what != "BOOKMARK":
                kept = self.scope.keep(found)
                key = key_of(kept)
                if what == "DELETED":
                    self._drop(key)
                else:
                    self._put(key, kept)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AnswerError(f"{request}: not an event of a watch: {line[:200]!r}") from error
        self._version = version
        self._updated()

    def _put(self, key: Key, kept: Json) -> None:
        self._drop(key)
        self.objects[key] = kept
        if self.scope.index is not None:
            self._index.setdefault(self.scope.index(kept), set()).add(key)

    def _drop(self, key: Key) -> None:
        before = self.objects.pop(key, None)
        if before is not None and self.scope.index is not None:
            entry = self.scope.index(before)
            keys = self._index[entry]
            keys.discard(key)
            if not keys:
                del self._index[entry]


class Watches:
    """The collections of one API server. The first user opens a collection, the last one closes it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._open: dict[Scope, Collection] = {}
        self._next_pod_list = 0.0

    def may_list_pods(self) -> bool:
        """Whether pods may be listed now. If many targets are down at once, only some of them can report why."""
        now = asyncio.get_running_loop().time()
        if now < self._next_pod_list:
            return False
        self._next_pod_list = now + POD_LIST_INTERVAL
        return True

    @asynccontextmanager
    async def lease(self, scope: Scope) -> AsyncIterator[Collection]:
        """Open a collection or join its users, without waiting for the first list."""
        collection = self._open.get(scope)
        if collection is None:
            collection = self._open[scope] = Collection(self.api, scope)
        collection.users += 1
        try:
            yield collection
        finally:
            collection.users -= 1
            if collection.users == 0:
                del self._open[scope]
                await collection.close()


async def shared_watches(shared: Shared, access: Access) -> Watches:
    """The watches of one API server, shared by all targets and discoveries with equal access.

    Raises:
        PluginError: the package is not installed, or there are no credentials.
    """
    return await shared.enter((__name__, access), lambda: _open(access))


@asynccontextmanager
async def _open(access: Access) -> AsyncIterator[Watches]:
    async with connect_api(access) as api:
        yield Watches(api)


def key_of(found: Json) -> Key:
    """Namespace and name of an object."""
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def version_of(found: Json) -> str:
    """The resource version of an object."""
    return str(found["metadata"]["resourceVersion"])


def older(version: str, than: str) -> bool:
    """Whether a resource version is older than another of the same object.

    API servers on etcd use growing numbers. If a version is not a number, the first one counts as not older.
    """
    if version.isdecimal() and than.isdecimal():
        return int(version) < int(than)
    return False
