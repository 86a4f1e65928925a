"""The target `null` keeps the contract of targets."""

from __future__ import annotations

import pytest

from autoscaler.targets.advice import Advice
from autoscaler.testing import TargetContract


class TestAdvice(TargetContract):
    @pytest.fixture
    def plugin(self) -> Advice:
        return Advice(size=4, follow=True)
