from __future__ import annotations

import pytest

from autoscaler_policies.answer import plain


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2000.4, "2,000"),
        (-120.0, "-120"),
        (99.96, "100"),
        (0.354, "0.354"),
        (0.0, "0"),
        (999e12, "999,000,000,000,000"),
        (1e15, "1e+15"),
        (-1e308, "-1e+308"),
    ],
)
def test_numbers_are_written_for_people(value: float, said: str) -> None:
    assert plain(value) == said
