"""The default policy: a placeholder of its contract; see the other files for what it does."""

from __future__ import annotations

import pytest

from autoscaler.core.model import Policy
from autoscaler.testing import PolicyContract
from autoscaler_policies.adaptive import Adaptive


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return Adaptive()
