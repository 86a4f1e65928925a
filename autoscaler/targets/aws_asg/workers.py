"""Which worker of the engine runs on which EC2 instance, and letting one go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from autoscaler.clients.aws import Aws
from autoscaler.ports import AnswerError, EdgeError, RefusedError, Worker, Workforce
from autoscaler.targets.aws_asg.groups import Instance

FILTERED = 200  # values in one filter: EC2's limit
POLL = 1.0  # seconds between two looks whether a worker has gone


class Staff:
    """The engine's workers on the instances of one group.

    Attributes:
        workforce: gives the live engine; raises EdgeError while there is none.
    """

    def __init__(self, aws: Aws, poll: float = POLL) -> None:
        self._aws = aws
        self._poll = poll
        self._names: dict[str, frozenset[str]] = {}
        self.workforce: Callable[[], Workforce] = _nobody

    async def choose(self, instances: Sequence[Instance], count: int) -> list[tuple[Instance, frozenset[str]]]:
        """The instances whose loss costs least, and the ids of their workers.

        An instance without a worker goes first: it has not begun to work, or has let go already.

        Raises:
            AnswerError: no worker can be found on any instance, so nobody knows which one is whose.
            EdgeError: the engine or EC2 cannot be asked.
        """
        workers = await self.workforce().workers()
        names = await self._addresses([instance.id for instance in instances])
        staff = {instance.id: _on(names[instance.id], workers) for instance in instances}
        if not workers:
            raise AnswerError("the engine shows no worker at all")
        if not any(staff.values()):
            raise AnswerError(
                "no worker of the engine is on an instance of the group: workers are at "
                f"{_some(w.hosts for w in workers)}, instances at {_some(names.values())}"
            )

        def cost(instance: Instance) -> tuple[bool, bool, float, str]:
            mine = staff[instance.id]
            return instance.healthy, bool(mine), sum(worker.cost for worker in mine), instance.id

        chosen = sorted(instances, key=cost)[:count]
        return [(instance, frozenset(worker.id for worker in staff[instance.id])) for instance in chosen]

    async def on(self, instance: str) -> frozenset[str]:
        """The ids of the workers on an instance. Raises EdgeError."""
        workers = await self.workforce().workers()
        return frozenset(worker.id for worker in _on((await self._addresses([instance]))[instance], workers))

    async def leave(
        self, workers: Collection[str], seconds: float, beat: Callable[[], Awaitable[None]] | None = None
    ) -> str:
        """Let workers finish, and wait until the engine has none of them.

        Args:
            workers: their ids.
            seconds: how long they are waited for.
            beat: called again and again while they are waited for.

        Returns:
            Why they have not gone in time, or the empty text.

        Raises:
            RefusedError: the engine cannot drain workers.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        asked: set[str] = set()
        trouble = ""
        while True:
            try:
                workforce = self.workforce()
                left = [worker for worker in await workforce.workers() if worker.id in workers]
                if not left:
                    return ""
                trouble = ""
                for worker in left:
                    if worker.id not in asked:
                        await workforce.drain(worker)
                        asked.add(worker.id)
            except RefusedError:
                raise
            except EdgeError as error:
                trouble = f": {error}"
            if loop.time() >= deadline:
                return f"not gone within {seconds:g} s{trouble}"
            if beat is not None:
                await beat()
            await asyncio.sleep(self._poll)

    def forget(self, present: Collection[str]) -> None:
        """Drop what is known of instances that are no more."""
        self._names = {instance: names for instance, names in self._names.items() if instance in present}

    async def _addresses(self, instances: Sequence[str]) -> Mapping[str, frozenset[str]]:
        unknown = [instance for instance in instances if instance not in self._names]
        for start in range(0, len(unknown), FILTERED):
            # By a filter, since an id that is no more would spoil the whole question.
            wanted = [{"Name": "instance-id", "Values": unknown[start : start + FILTERED]}]
            reservations = await self._aws.pages("ec2", "DescribeInstances", {"Filters": wanted}, "Reservations")
            for reservation in reservations:
                for found in reservation.get("Instances") or ():
                    self._names[found.get("InstanceId", "")] = names_of(found)
        return {instance: self._names.get(instance, frozenset({instance})) for instance in instances}


def names_of(instance: Mapping[str, Any]) -> frozenset[str]:
    """What a worker on an instance may call its host: addresses, DNS names and their first labels, the id."""
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


def _some(groups: Any) -> str:  # noqa: ANN401 - an iterable of sets of texts
    known = sorted({name for names in groups for name in names})
    return ", ".join(known[:4]) + (" …" if len(known) > 4 else "")  # noqa: PLR2004


def _nobody() -> Workforce:
    raise RefusedError("no engine is attached that could name its workers")
