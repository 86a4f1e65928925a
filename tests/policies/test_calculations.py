from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "calculations.md"


def test_every_worked_number_of_the_page_is_the_result_of_the_code() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert outcome.attempted > 50
    assert outcome.failed == 0
