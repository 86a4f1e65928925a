"""Discovery `kubernetes`: the objects of one resource type that a label selector matches.

Each namespace costs one list and one watch, which fleets with the same selector share. `members` answers from memory.
Only the fields that a template can name are kept of an object.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from sys import intern
from typing import ClassVar

from autoscaler.clients.kubernetes import Access, Api, Json, Resource, check_times
from autoscaler.clients.kubernetes_watch import Collection, Scope, shared_watches
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import guess
from autoscaler.ports import Discovery, Member, RefusedError, Shared

RESOURCES = {
    "deployments": Resource("apps", "v1", "deployments"),
    "statefulsets": Resource("apps", "v1", "statefulsets"),
    "flinkdeployments": Resource("flink.apache.org", "v1beta1", "flinkdeployments"),
}
# This annotation repeats the whole object as kubectl applied it. No template can use it, and it needs the most memory.
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = r"([\w.-]+/)?\w([\w.-]*\w)?"
_VALUE = r"(\w([\w.-]*\w)?)?"
_REQUIREMENT = (
    rf"\s*(!\s*{_KEY}|{_KEY}(\s*(=|==|!=)\s*{_VALUE}|\s+(in|notin)\s*\(\s*{_VALUE}\s*(,\s*{_VALUE}\s*)*\))?)\s*"
)
_SELECTOR = re.compile(rf"({_REQUIREMENT}(,{_REQUIREMENT})*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The Kubernetes objects of one resource type, selected by their labels.

    The discovery shares its client with targets that have equal `kubeconfig`, `context`, `timeout` and `max_age`.

    Attributes:
        resource: type of the objects: `deployments`, `statefulsets`, `flinkdeployments`, or group, version and plural
            of another type, such as `sparkoperator.k8s.io/v1beta2/sparkapplications`. Default `deployments`.
        selector: label selector in kubectl's syntax, such as `autoscale=streaming` or `team in (a, b),!test`.
            Default: all objects.
        namespaces: the namespaces to search, with one list and one watch for each. Default: that of the kubeconfig's
            context, or of the daemon's pod.
        all: whether to search all namespaces, with one list and one watch, which needs a ClusterRole. Default false.
        kubeconfig: path of a kubeconfig. Default: in a pod its service account, elsewhere the kubeconfig that kubectl
            would use (KUBECONFIG, `~/.kube/config`).
        context: context of the kubeconfig. Default: its current context.
        timeout: time-out for the first list, including retries. Default 5s.
        max_age: when a watch has received nothing for this long, the members count as unknown. Default 1m.
    """

    packages: ClassVar[tuple[str, ...]] = ("kubernetes_asyncio",)
    variables: ClassVar[tuple[str, ...]] = ("name", "namespace", "uid", "labels", "annotations")

    resource: str = "deployments"
    selector: str = ""
    namespaces: tuple[str, ...] = ()
    all: bool = False
    kubeconfig: str = ""
    context: str = ""
    timeout: timedelta = timedelta(seconds=5)
    max_age: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if self.resource not in RESOURCES and Resource.parse(self.resource) is None:
            raise ParameterError(
                "resource",
                f"must be one of {', '.join(RESOURCES)} or group/version/plural such as "
                f"flink.apache.org/v1beta1/flinkdeployments, not {self.resource!r}{guess(self.resource, RESOURCES)}",
            )
        if not _SELECTOR.fullmatch(self.selector):
            raise ParameterError(
                "selector",
                f"must be a label selector such as autoscale=streaming,team in (a, b), not {self.selector!r}",
            )
        for namespace in self.namespaces:
            if not _NAMESPACE.fullmatch(namespace):
                raise ParameterError("namespaces", f"must be names of namespaces, not {namespace!r}")
        if len(set(self.namespaces)) < len(self.namespaces):
            raise ParameterError("namespaces", "must not name one twice")
        if self.all and self.namespaces:
            raise ParameterError("all", "has no effect with namespaces: leave one of the two out")
        check_times(self.timeout, self.max_age)

    @property
    def what(self) -> Resource:
        """The resource type as API paths name it."""
        return Resource.parse(self.resource) or RESOURCES[self.resource]

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Discovery]:
        """Use the shared client and watches of the API server, without waiting for the first list.

        Raises:
            PluginError: the package is not installed, or there are no credentials.
        """
        async with self.lease(shared, keep_member) as (_, collections):
            yield Found(collections)

    @asynccontextmanager
    async def lease(
        self, shared: Shared, keep: Callable[[Json], Json]
    ) -> AsyncIterator[tuple[Api, Sequence[Collection]]]:
        """Yield the client, and one collection per namespace with objects reduced by `keep`. Raises like `connect`."""
        access = Access(self.kubeconfig, self.context, self.timeout.total_seconds(), self.max_age.total_seconds())
        watches = await shared_watches(shared, access)
        namespaces = ("",) if self.all else sorted(self.namespaces) or (watches.api.namespace,)
        async with AsyncExitStack() as stack:
            collections = []
            for namespace in namespaces:
                scope = Scope(resource=self.what, keep=keep, namespace=namespace, labels=self.selector)
                collections.append(await stack.enter_async_context(watches.lease(scope)))
            yield watches.api, collections


class Found:
    """The members as the watches have shown them."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        self.collections = collections

    async def members(self) -> Sequence[Member]:
        """All objects by namespace and name, without those being deleted.

        Raises:
            UnavailableError: a watch has received nothing for longer than `max_age`.
            RefusedError: access to a namespace is denied, or there is no such resource type.
            AnswerError: the API server does not accept the selector, or the server is not an API server.
        """
        await asyncio.gather(*(collection.attempted() for collection in self.collections))
        found: list[Member] = []
        for collection in self.collections:
            await collection.fresh()
            if isinstance(collection.error, RefusedError):
                # If the resource type was removed, the collection is empty. That must not look like an empty fleet.
                raise collection.error.with_traceback(None)
            kept = collection.objects
            found += [kept[key]["member"] for key in sorted(kept) if kept[key]["member"] is not None]
        return found


def keep_member(found: Json) -> Json:
    """Reduce an object to its member. Strings that many objects share are interned to save memory."""
    metadata = found["metadata"]
    name, namespace = str(metadata["name"]), intern(str(metadata.get("namespace", "")))
    annotations = _strings(metadata.get("annotations"))
    annotations.pop(APPLIED, None)
    values: dict[str, str | dict[str, str]] = {
        "name": name,
        "namespace": namespace,
        "uid": str(metadata.get("uid", "")),
        "labels": {key: intern(value) for key, value in _strings(metadata.get("labels")).items()},
        "annotations": annotations,
    }
    going = "deletionTimestamp" in metadata
    return {
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": metadata["resourceVersion"]},
        "member": None if going else Member(f"{namespace}/{name}" if namespace else name, values),
    }


def _strings(found: Json | None) -> dict[str, str]:
    """Labels or annotations with interned keys. Raises TypeError when a value is not a string."""
    texts = {intern(key): value for key, value in (found or {}).items()}
    if not all(isinstance(value, str) for value in texts.values()):
        raise TypeError("labels and annotations are strings")
    return texts
