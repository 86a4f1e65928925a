"""The target `null` keeps the contract of targets."""

from __future__ import annotations

import pytest

from autoscaler.targets.advice import Null
from autoscaler.testing import TargetContract


class TestNull(TargetContract):
    @pytest.fixture
    def plugin(self) -> Null:
        return Null(size=4)
