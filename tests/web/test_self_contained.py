"""The page as one file: everything is inlined, its Content-Security-Policy allows exactly that, and data stay data."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from autoscaler import web

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<link rel="stylesheet" href="assets/page.css">
<script src="/assets/chart.js" defer></script>
<link rel="modulepreload" href="assets/parts.js">
<script type="module" src="assets/page.js"></script></head><body></body></html>"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "page.css").write_text("body { color: red }")
    (tmp_path / "chart.js").write_text("const end = '</script>';")
    (tmp_path / "page.js").write_text('import { f } from "./parts.js";\nf();')
    (tmp_path / "parts.js").write_text('import "./leaf.js";\nexport const f = () => 1;')
    (tmp_path / "leaf.js").write_text("export {};")
    (tmp_path / "notes.txt").write_text("not served")
    monkeypatch.setattr("autoscaler.web.resources.files", lambda _: tmp_path)
    web.files.cache_clear()
    yield
    web.files.cache_clear()


@pytest.mark.usefixtures("files")
def test_nothing_is_requested_and_every_inlined_part_is_allowed_by_its_hash() -> None:
    page = web.self_contained({"clusters": []})
    assert "assets/" not in page
    assert 'src="' not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    elements = re.findall(r"<(script|style)([^>]*)>(.*?)</\1>", page, re.DOTALL)
    assert [element for element, _, _ in elements] == ["script", "script", "style", "script", "script"]
    for _, attributes, content in elements:
        if "application/json" not in attributes:
            digest = base64.b64encode(sha256(content.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy[1]


@pytest.mark.usefixtures("files")
def test_modules_are_imported_by_name_as_a_file_has_no_addresses() -> None:
    page = web.self_contained({})
    found = re.search(r'<script type="importmap">(.*?)</script>', page)
    assert found is not None
    modules = json.loads(found[1])["imports"]
    assert sorted(modules) == ["leaf.js", "parts.js"]
    source = base64.b64decode(modules["parts.js"].partition(",")[2]).decode()
    assert 'import "leaf.js"' in source
    assert 'from "parts.js"' in page
    assert page.index("importmap") < page.index('type="module"')


@pytest.mark.usefixtures("files")
def test_no_text_of_a_run_ends_its_element() -> None:
    run = {"clusters": [{"name": "</script><script>alert(1)</script><!--"}]}
    page = web.self_contained(run)
    data = re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1]) == run
    assert "alert(1)</script>" not in page


@pytest.mark.usefixtures("files")
def test_only_files_of_the_page_are_served() -> None:
    assert sorted(web.files()) == ["chart.js", "index.html", "leaf.js", "page.css", "page.js", "parts.js"]


def test_the_real_page_can_be_one_file() -> None:
    assert "assets/" not in web.self_contained({"clusters": []})
