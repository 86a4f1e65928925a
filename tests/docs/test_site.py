from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
PLACES = re.compile(r"`((?:docs|examples|deploy|tests|policies|autoscaler)/[\w./-]*\w)`")
# Placeholders for the reader.
MISSING = {"autoscaler/targets/file.py", "autoscaler/sources/file.py"}
MISSING |= {f"tests/contracts/test_file_{kind}.py" for kind in ("target", "source", "discovery")}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed here; `make docs` installs it")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for address in re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="(https?://[^"]*)"', page.read_text()):
            raise AssertionError(f"{page.name} loads {address}: the site must work offline")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_to_existing_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []
    if "adr" not in page.parts:  # decision records name the modules of their time
        named = {place for place in PLACES.findall(text) if not (ROOT / place).exists()}
        assert named <= MISSING
