"""The modules that a job loads."""

from __future__ import annotations

import subprocess
import sys


def test_a_job_without_a_rest_api_loads_no_http_library() -> None:
    code = "import sys, autoscaler.injob.reactive; print({'aiohttp', 'pydantic', 'tenacity'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
