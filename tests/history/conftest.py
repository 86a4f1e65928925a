"""One Spark session for all tests of the pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from autoscaler.history.session import session

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    # The tests end before Java's second compiler pays off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}

_in_json = PySparkLogger.addHandler


def _add_handler(logger: PySparkLogger, handler: logging.Handler) -> None:
    """Keep the format of pytest's handlers.

    Pytest also adds its capturing handlers to loggers that do not propagate. PySpark has such loggers once a query has
    failed, and gives each handler that is added to them its own format: every later test of the process would capture
    JSON.
    """
    if handler.formatter is None:
        _in_json(logger, handler)
    else:
        logging.Logger.addHandler(logger, handler)


@pytest.fixture(scope="session", autouse=True)
def _captured_logs_stay_as_they_are() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PySparkLogger, "addHandler", _add_handler)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("tests", master="local[2]", settings=SETTINGS) as started:
        yield started
