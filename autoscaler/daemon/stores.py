"""Selects the state store that a configuration names."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from autoscaler.config.model import DaemonSpec
from autoscaler.core.model import ClusterState
from autoscaler.daemon.leases import Ownership, SharedOwnership
from autoscaler.daemon.state_store import SqliteStateStore, open_state_store, read_state

if TYPE_CHECKING:
    from autoscaler.daemon.postgres_store import PostgresStateStore


@asynccontextmanager
async def open_store(daemon: DaemonSpec) -> AsyncIterator[SqliteStateStore | PostgresStateStore]:
    """Open the state store of a daemon, for as long as the context is open.

    A store that several copies can share saves a cluster only under a lease.

    Raises:
        StoreError: the store cannot be used; the message says why and what to do.
    """
    if daemon.state is None:
        async with open_state_store(daemon.directory, decisions=daemon.decisions) as embedded:
            yield embedded
    else:
        from autoscaler.daemon.postgres_store import open_postgres_store  # noqa: PLC0415 - belongs to an extra

        async with open_postgres_store(daemon.state, decisions=daemon.decisions, leases=True) as shared:
            yield shared


def ownership_of(store: SqliteStateStore | PostgresStateStore) -> Ownership:
    """The ownership of clusters for a copy of the daemon with this store."""
    return Ownership() if isinstance(store, SqliteStateStore) else SharedOwnership(store, socket.gethostname())


async def read_states(daemon: DaemonSpec, clusters: Collection[str]) -> dict[str, ClusterState]:
    """The states that daemons, running or not, have persisted, for clusters that have one. It changes nothing.

    Raises:
        StoreError: the store exists, but cannot be read.
    """
    if daemon.state is not None:
        from autoscaler.daemon.postgres_store import read_postgres_states  # noqa: PLC0415 - belongs to an extra

        return await read_postgres_states(daemon.state, clusters)
    found = {name: read_state(daemon.directory, name) for name in clusters}
    return {name: state for name, state in found.items() if state is not None}
