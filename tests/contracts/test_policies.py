"""The built-in policies keep the contract of policies."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autoscaler.core.model import Policy
from autoscaler.testing import PolicyContract
from autoscaler_policies.rules.backlog_drain import BacklogDrain
from autoscaler_policies.rules.batch import Batch
from autoscaler_policies.rules.target_tracking import Mode, TargetTracking
from autoscaler_policies.rules.threshold import Aggregate, Rule, Threshold


class TestThreshold(PolicyContract):
    @pytest.fixture(
        params=[
            Threshold(up=(Rule(metric="lag", above=100),), down=(Rule(metric="lag", below=10),)),
            Threshold(
                up=(
                    Rule(metric="lag", above=1e4, percent=50),
                    Rule(metric="utilization", above=0.9, hold=timedelta(seconds=30)),
                ),
                down=(Rule(metric="utilization", below=0.3, replicas=2, aggregate=Aggregate.MAX),),
            ),
            Threshold(down=(Rule(metric="arrivals", below=1e9, hold=timedelta(minutes=1), percent=100),)),
        ],
        ids=["one-metric", "several-rules", "down-only"],
    )
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return request.param  # type: ignore[no-any-return]


class TestTargetTracking(PolicyContract):
    @pytest.fixture(
        params=[
            TargetTracking("utilization", 0.7),
            TargetTracking("lag", 1000, mode=Mode.TOTAL),
            TargetTracking("arrivals", 1e-300, tolerance_up=0.0, tolerance_down=0.0),
        ],
        ids=["utilization", "total", "tiny-target"],
    )
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return request.param  # type: ignore[no-any-return]


class TestBacklogDrain(PolicyContract):
    @pytest.fixture(
        params=[
            BacklogDrain(),
            BacklogDrain(stops=False, drain_time=timedelta(seconds=1), restart=timedelta(0)),
            BacklogDrain(lag="utilization", arrivals="saturation", down_backlog_time=timedelta(0)),
        ],
        ids=["defaults", "hasty", "other-metrics"],
    )
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return request.param  # type: ignore[no-any-return]


class TestBatch(PolicyContract):
    @pytest.fixture(
        params=[
            Batch(),
            Batch(waiting_price=0.0, deadline=timedelta(minutes=1), start_up=timedelta(0)),
            Batch(pending="lag", running="utilization", remaining="arrivals", idle_time=timedelta(seconds=1)),
        ],
        ids=["defaults", "deadline", "other-metrics"],
    )
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return request.param  # type: ignore[no-any-return]
