"""What there is on an API server, kept up to date by one list and one watch for all who look at the same.

A collection lists once and then follows the watch: events, bookmarks, the end of the watch (which is asked for after
half of `max_age`, so that a watch that was silently lost is found out), a version that is no longer kept (410: it
lists again), a lost connection (it goes on from the last version, with growing pauses and jitter) and one on which
nothing comes any more (it lists again).
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
    AbsentError,
    Access,
    Api,
    Ask,
    BusyError,
    GoneError,
    Json,
    Resource,
    connect_api,
    refusal,
)
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, UnavailableError

_log = logging.getLogger("autoscaler.targets")

PAGE = 500  # objects in one answer to a list
LISTING = 30.0  # seconds for one page
FIRST_PAUSE = 0.5
STEADY = 5.0  # seconds that a watch lasts where all is well: the pauses begin anew
LONGEST_PAUSE = 10.0
REFUSED_PAUSE = 30.0  # longest, when it is not allowed: somebody has to change a Role
PATIENT = 3  # times that a server may say it cannot answer; then it may be that it has gone back behind our version
OPTIONAL_PAUSE = 300.0  # until what may be missing (a CRD, a permission) is tried again
LOOKS_EVERY = 0.2  # seconds between two lists of pods, of whatever target
LONGEST_WAIT = 60.0  # of what a server may ask us to wait

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is watched: the key under which a collection is shared.

    Attributes:
        resource: the kind of thing.
        keep: what to keep of an object, its name and version among it; the rest is dropped at once.
        namespace: empty for all.
        name: one object only; empty for all.
        labels: label selector; empty for all.
        index: what objects are looked up by, besides their names.
        optional: it may be that it does not exist or is not allowed.
    """

    resource: Resource
    keep: Callable[[Json], Json]
    namespace: str = ""
    name: str = ""
    labels: str = ""
    index: Callable[[Json], Hashable] | None = None
    optional: bool = False

    def query(self) -> dict[str, object]:
        """The selectors as parameters of an address."""
        fields = {"fieldSelector": f"metadata.name={self.name}"} if self.name else {}
        return {**fields, **({"labelSelector": self.labels} if self.labels else {})}

    def ask(self, verb: str) -> Ask:
        """A request for it. RBAC takes the field selector for the name."""
        return Ask(verb, self.resource, self.namespace, self.name)


class StalledError(UnavailableError):
    """A watch says nothing any more."""


class Collection:
    """A live collection.

    Attributes:
        objects: what there is, as far as `keep` keeps it.
        kind: the `kind` of its objects, known after the first list.
        error: why it cannot be read at present, or None.
        users: how many look at it.
    """

    def __init__(self, api: Api, scope: Scope) -> None:
        self.scope = scope
        self.objects: dict[Key, Json] = {}
        self.kind = ""
        self.error: EdgeError | None = None
        self.users = 0
        self._api = api
        self._written: dict[Key, tuple[str, int]] = {}
        self._index: dict[Hashable, set[Key]] = {}
        self._version: str | None = None
        self._heard: float | None = None
        self._failures = 0
        self._short = 0
        self._tried = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"watch {scope.resource} {scope.namespace} {scope.name}")

    async def close(self) -> None:
        """Stop watching."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def tried(self) -> None:
        """Wait for the first list, whether it succeeds or not.

        Raises:
            EdgeTimeoutError: that takes longer than the time-out.
        """
        if self._tried.is_set():
            return
        try:
            async with asyncio.timeout(self._api.access.timeout):
                await self._tried.wait()
        except TimeoutError as error:
            raise EdgeTimeoutError(
                f"the API server {self._api.server} did not answer within {self._api.access.timeout:g} s to "
                f"{self.scope.ask('list')}"
            ) from error

    async def fresh(self) -> None:
        """See to it that what is in it can be relied on.

        Raises:
            EdgeError: it was never read, or not heard of for longer than `max_age`; the message says why.
        """
        await self.tried()
        if self._heard is None:
            raise self.error or UnavailableError(f"{self.scope.ask('list')} was not answered yet")
        silent = asyncio.get_running_loop().time() - self._heard
        if silent > self._api.access.max_age:
            said = f": {self.error}" if self.error else ""
            text = f"{self.scope.ask('watch')}: nothing was heard for {silent:.0f} s, the size known is stale{said}"
            raise (RefusedError if isinstance(self.error, RefusedError) else UnavailableError)(text)

    def find(self, index: Hashable) -> Sequence[Json]:
        """The objects under this index."""
        return [self.objects[key] for key in sorted(self._index.get(index, ()))]

    @property
    def known(self) -> bool:
        """Whether it was read, or is known not to be readable by us."""
        return self._heard is not None or isinstance(self.error, RefusedError)

    def wrote(self, key: Key, version: str, replicas: int) -> None:
        """Note a size that the API server has answered itself: it holds until the watch has come as far."""
        self._written[key] = (version, replicas)

    def written(self, key: Key) -> tuple[str, int] | None:
        """Version and size that were answered and that the watch has not shown yet."""
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
                    self._tried.set()
                await self._watch()
                # A server that ends every watch at once must not be asked without a pause.
                self._failures = 0 if loop.time() - begun >= FIRST_PAUSE else self._failures + 1
                self._short = 0
                error: EdgeError | None = None
            except EdgeError as caught:
                error = caught
            except Exception as caught:  # noqa: BLE001 - a defect must not leave all with a watch that quietly ended
                _log.exception("a watch failed", extra=self._known)
                error = AnswerError(f"{self.scope.ask('watch')} failed: {type(caught).__name__}: {caught}")
            if error is not None:
                # One that is opened, or listed for, and fails at once each time is to be left alone for longer, too.
                self._short = 0 if loop.time() - begun >= STEADY else self._short + 1
                self._failures += 1
                self._failed(error)
            if self._failures:
                await asyncio.sleep(self._pause(error))

    def _pause(self, error: EdgeError | None) -> float:
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - so that not all come back at once; no secret
        if isinstance(error, RefusedError):
            if self.scope.optional:
                return OPTIONAL_PAUSE * spread
            longest = REFUSED_PAUSE
        else:
            longest = min(LONGEST_PAUSE, self._api.access.max_age / 4)
        times = max(self._failures, self._short if error else 0)
        pause = min(longest, FIRST_PAUSE * 2.0 ** min(times - 1, 10)) * spread
        asked = (error.after or 0.0) if isinstance(error, BusyError) else 0.0
        return max(pause, min(asked, LONGEST_WAIT))

    def _failed(self, error: EdgeError) -> None:
        # A list on top is no remedy for one that has too much to do.
        answers = isinstance(error, BusyError) and not error.crowded and self._failures >= PATIENT
        lost = isinstance(error, UnavailableError) and not isinstance(error, GoneError | StalledError)
        if self._heard is None or answers or not lost:
            self._version = None
        if isinstance(error, AbsentError) and self._failures > 1:  # once may be an API server that starts
            self.objects, self._index = {}, {}
        # One lost connection or old version is a watch's everyday life.
        routine = self._failures == 1 and isinstance(error, UnavailableError) and self._heard is not None
        if self.error is None and not routine:
            level = logging.INFO if self.scope.optional and isinstance(error, AbsentError) else logging.WARNING
            _log.log(level, "cannot watch", extra={**self._known, "error": str(error)})
        if not routine:
            self.error = error
        self._tried.set()

    def _hear(self) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._failures = 0
        if self.error is not None:
            self.error = None
            _log.info("watching again", extra=self._known)

    @property
    def _known(self) -> dict[str, str]:
        """What the log is told of it."""
        return {"resource": str(self.scope.resource), "namespace": self.scope.namespace, "object": self.scope.name}

    async def _list(self) -> None:
        found: dict[Key, Json] = {}
        following = version = ""
        known = dict(self._written)  # a list that is asked for from now on has seen these
        while True:
            query = {"limit": PAGE, **self.scope.query(), **({"continue": following} if following else {})}
            answer = await self._api.call(self.scope.ask("list"), query, limit=LISTING)
            try:
                for item in answer["items"] or ():
                    kept = self.scope.keep(item)
                    found[key_of(kept)] = kept
                version = str(answer["metadata"]["resourceVersion"])
                following = answer["metadata"].get("continue") or ""
                self.kind = str(answer["kind"]).removesuffix("List")
            except (KeyError, TypeError, AttributeError) as error:
                raise AnswerError(
                    f"{self.scope.ask('list')} was not answered by a Kubernetes list: {error!r}"
                ) from error
            if not following:
                break
        self.objects = {}
        self._index = {}
        for key, kept in found.items():
            self._put(key, kept)
        self._written = {key: change for key, change in self._written.items() if known.get(key) != change}
        self._version = version
        self._hear()

    async def _watch(self) -> None:
        """Follow the watch until it ends as agreed."""
        max_age = self._api.access.max_age
        ask = self.scope.ask("watch")
        spread = random.uniform(0.7, 1)  # noqa: S311 - so that many watches do not end together; no secret
        query: dict[str, object] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": max(1, round(max_age / 2 * spread)),
            **self.scope.query(),
        }
        async with self._api.stream(ask, query) as response:
            self._hear()
            while True:
                try:
                    async with asyncio.timeout(max_age * 0.75):
                        line = await response.content.readline()
                except TimeoutError as error:
                    raise StalledError(f"{ask}: nothing came for {max_age * 0.75:g} s, not even a bookmark") from error
                except ValueError as error:
                    raise AnswerError(f"{ask}: an event is too long to be read: {error}") from error
                if not line.endswith(b"\n"):
                    return  # the end; a line that was cut comes again
                self._take(ask, line)

    def _take(self, ask: Ask, line: bytes) -> None:
        try:
            event = json.loads(line)
            what, found = event["type"], event["object"]
            if what == "ERROR":
                raise refusal(ask, int(found.get("code", 500)), str(found.get("message", "")), self._api.server)
            version = str(found["metadata"]["resourceVersion"])
            if what != "BOOKMARK":
                kept = self.scope.keep(found)
                key = key_of(kept)
                if what == "DELETED":
                    self._drop(key)
                else:
                    self._put(key, kept)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AnswerError(f"{ask}: this is no event of a watch: {line[:200]!r}") from error
        self._version = version
        self._hear()

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
    """The collections of one API server, each opened by the first who looks at it and closed by the last."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._open: dict[Scope, Collection] = {}
        self._next_look = 0.0

    def looks(self) -> bool:
        """Whether pods may be looked at now: when much is down at once, only some are told why."""
        now = asyncio.get_running_loop().time()
        if now < self._next_look:
            return False
        self._next_look = now + LOOKS_EVERY
        return True

    @asynccontextmanager
    async def lease(self, scope: Scope) -> AsyncIterator[Collection]:
        """Look at a collection. It does not wait for the first list."""
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


@asynccontextmanager
async def connect_watches(access: Access) -> AsyncIterator[Watches]:
    """Open the client of one API server with its watches."""
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

    They are numbers that grow on every API server over etcd; where they are not, any other one counts as newer.
    """
    if version.isdecimal() and than.isdecimal():
        return int(version) < int(than)
    return False
