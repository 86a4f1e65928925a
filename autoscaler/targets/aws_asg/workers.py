"""Finds the engine's workers on EC2 instances and drains them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from autoscaler.clients.aws import Aws
from autoscaler.ports import AnswerError, EdgeError, RefusedError, Worker, Workforce
from autoscaler.targets.aws_asg.groups import Instance

FILTER_VALUES = 200  # in one filter: EC2's limit
POLL_INTERVAL = 1.0  # seconds between two checks whether the workers have ended


class GroupWorkers:
    """The engine's workers on the instances of one group.

    Attributes:
        workforce: returns the connected engine; raises EdgeError while there is none.
    """

    def __init__(self, aws: Aws, poll: float = POLL_INTERVAL) -> None:
        self._aws = aws
        self._poll = poll
        self._names: dict[str, frozenset[str]] = {}
        self.workforce: Callable[[], Workforce] = _no_engine

    async def choose(self, instances: Sequence[Instance], count: int) -> list[tuple[Instance, frozenset[str]]]:
        """The instances whose loss costs least, each with the ids of its workers.

        Unhealthy instances come first, then instances without a worker: they have not started to work, or have ended.

        Raises:
            AnswerError: no worker can be assigned to any instance.
            EdgeError: the engine or EC2 failed or cannot be reached.
        """
        workers = await self.workforce().workers()
        names = await self._addresses([instance.id for instance in instances])
        by_instance = {instance.id: _on(names[instance.id], workers) for instance in instances}
        if not workers:
            raise AnswerError("the engine has no workers")
        if not any(by_instance.values()):
            raise AnswerError(
                "no worker of the engine is on an instance of the group: workers are at "
                f"{_some(w.hosts for w in workers)}, instances at {_some(names.values())}"
            )

        def cost(instance: Instance) -> tuple[bool, bool, float, str]:
            mine = by_instance[instance.id]
            return instance.healthy, bool(mine), sum(worker.cost for worker in mine), instance.id

        chosen = sorted(instances, key=cost)[:count]
        return [(instance, frozenset(worker.id for worker in by_instance[instance.id])) for instance in chosen]

    async def on(self, instance: str) -> frozenset[str]:
        """The ids of the workers on an instance. Raises EdgeError."""
        workers = await self.workforce().workers()
        return frozenset(worker.id for worker in _on((await self._addresses([instance]))[instance], workers))

    async def leave(
        self, workers: Collection[str], seconds: float, heartbeat: Callable[[], Awaitable[None]] | None = None
    ) -> str | None:
        """Drain workers, and wait until the engine does not list them any more.

        Args:
            workers: the ids of the workers.
            seconds: the longest wait.
            heartbeat: called repeatedly during the wait.

        Returns:
            Why the workers have not ended in time; None if they have.

        Raises:
            RefusedError: the engine cannot drain workers.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        draining: set[str] = set()
        problem = ""
        while True:
            try:
                workforce = self.workforce()
                left = [worker for worker in await workforce.workers() if worker.id in workers]
                if not left:
                    return None
                problem = ""
                for worker in left:
                    if worker.id not in draining:
                        await workforce.drain(worker)
                        draining.add(worker.id)
            except RefusedError:
                raise
            except EdgeError as error:
                problem = f": {error}"
            if loop.time() >= deadline:
                return f"not gone within {seconds:g} s{problem}"
            if heartbeat is not None:
                await heartbeat()
            await asyncio.sleep(self._poll)

    def forget(self, present: Collection[str]) -> None:
        """Drop the names of instances that no longer exist."""
        self._names = {instance: names for instance, names in self._names.items() if instance in present}

    async def _addresses(self, instances: Sequence[str]) -> Mapping[str, frozenset[str]]:
        unknown = [instance for instance in instances if instance not in self._names]
        for start in range(0, len(unknown), FILTER_VALUES):
            # Use a filter: an id in InstanceIds that no longer exists would make the whole request fail.
            wanted = [{"Name": "instance-id", "Values": unknown[start : start + FILTER_VALUES]}]
            reservations = await self._aws.pages("ec2", "DescribeInstances", {"Filters": wanted}, "Reservations")
            for reservation in reservations:
                for found in reservation.get("Instances") or ():
                    self._names[found.get("InstanceId", "")] = names_of(found)
        return {instance: self._names.get(instance, frozenset({instance})) for instance in instances}


def names_of(instance: Mapping[str, Any]) -> frozenset[str]:
    """The names that a worker may report as its host: the id, addresses, DNS names and their first labels."""
    names = {instance.get(key) for key in ("InstanceId", "PrivateIpAddress", "PublicIpAddress")}
    domains = {instance.get(key) for key in ("PrivateDnsName", "PublicDnsName")}
    for interface in instance.get("NetworkInterfaces") or ():
        names |= {address.get("PrivateIpAddress") for address in interface.get("PrivateIpAddresses") or ()}
        names |= {address.get("Ipv6Address") for address in interface.get("Ipv6Addresses") or ()}
        domains.add(interface.get("PrivateDnsName"))
    names |= domains | {str(domain).partition(".")[0] for domain in domains if domain}
    return frozenset(str(name).lower() for name in names if name)


def _on(names: frozenset[str], workers: Sequence[Worker]) -> list[Worker]:
    # A resource name such as i-0abc.eu-central-1.compute.internal begins with the instance's id.
    ids = tuple(f"{name}." for name in names if name.startswith("i-"))
    return [
        worker
        for worker in workers
        if any(host in names or host.startswith(ids) for host in (host.lower().strip("[]") for host in worker.hosts))
    ]


def _some(groups: Any) -> str:  # noqa: ANN401 - an iterable of sets of strings
    known = sorted({name for names in groups for name in names})
    return ", ".join(known[:4]) + (" …" if len(known) > 4 else "")  # noqa: PLR2004


def _no_engine() -> Workforce:
    raise RefusedError("no engine is attached that can name its workers")
