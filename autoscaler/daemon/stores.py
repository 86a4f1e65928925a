"""Which state store a configuration names."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from autoscaler.config.model import DaemonSpec
from autoscaler.core.model import ClusterState
from autoscaler.daemon.leases import Ownership, SharedOwnership, SoleOwnership
from autoscaler.daemon.postgres_store import PostgresStateStore, open_postgres_store, read_postgres_states
from autoscaler.daemon.state_store import SqliteStateStore, open_state_store, read_state
from autoscaler.ports import StateStore


@asynccontextmanager
async def open_store(
    daemon: DaemonSpec, *, leases: bool = False
) -> AsyncIterator[SqliteStateStore | PostgresStateStore]:
    """Open the state store of a daemon, for as long as the context is open.

    Args:
        daemon: says which.
        leases: whether one that copies share saves a cluster only under a lease.

    Raises:
        StoreError: it cannot be used; the message says why and what to do.
    """
    if daemon.state is None:
        async with open_state_store(daemon.directory, decisions=daemon.decisions) as embedded:
            yield embedded
    else:
        async with open_postgres_store(daemon.state, decisions=daemon.decisions, leases=leases) as shared:
            yield shared


def ownership_of(store: StateStore) -> Ownership:
    """Which clusters are controlled by the copy of the daemon that this store is of."""
    return SharedOwnership(store, socket.gethostname()) if isinstance(store, PostgresStateStore) else SoleOwnership()


async def read_states(daemon: DaemonSpec, clusters: Collection[str]) -> dict[str, ClusterState]:
    """The states that daemons, running or not, have persisted; one without a state is left out. Changes nothing.

    Raises:
        StoreError: there is a store, and it cannot be read.
    """
    if daemon.state is not None:
        return await read_postgres_states(daemon.state, clusters)
    found = {name: read_state(daemon.directory, name) for name in clusters}
    return {name: state for name, state in found.items() if state is not None}
