"""What several tests look at, and takes minutes to make."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.test_demo import played, require_demo


@pytest.fixture(scope="session")
def spark_demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a demo on Spark at a short duration."""
    require_demo(tmp_path_factory)
    return played(tmp_path_factory.mktemp("demo") / "output", "--duration", "110")
