"""Fakes, virtual time and contract tests for plug-in authors.

`PolicyContract`, `SourceContract`, `EngineContract`, `TargetContract` and `DiscoveryContract` are test classes to
inherit; see `autoscaler.testing.contracts`. They need pytest, so this package imports them only at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.testing.contracts import (
        DiscoveryContract,
        EngineContract,
        LocalShared,
        PolicyContract,
        SourceContract,
        TargetContract,
        views,
    )

__all__ = [
    "DiscoveryContract",
    "EngineContract",
    "LocalShared",
    "PolicyContract",
    "SourceContract",
    "TargetContract",
    "views",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autoscaler.testing import contracts  # noqa: PLC0415 - pytest may not be installed

    return getattr(contracts, name)
