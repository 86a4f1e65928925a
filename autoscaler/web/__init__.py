"""The page of the daemon: the files that the daemon serves, and the page with a recorded run as one file."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources

INDEX = "index.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files with other suffixes are not served."""

_STYLE = re.compile(r"""<link\b[^>]*\bhref=["']/?assets/([\w.-]+\.css)["'][^>]*>""")
_PRELOAD = re.compile(r"""<link\b[^>]*\brel=["']modulepreload["'][^>]*>\s*""")
_SCRIPT = re.compile(r"""<script\b([^>]*?)\bsrc=["']/?assets/([\w.-]+\.js)["']([^>]*)></script>""")
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)(["'])\./([\w.-]+\.js)\2""")
_HEAD = re.compile(r"""<meta\s+charset=[^>]*>""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page.

    Attributes:
        body: its content.
        compressed: its content, compressed by gzip.
        content_type: its type with the charset.
        etag: a weak entity tag, because both forms share it.
    """

    body: bytes
    compressed: bytes
    content_type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """All files of the page by their names; the page itself is `INDEX`."""
    found = {}
    for each in resources.files(__name__).iterdir():
        content_type = _TYPES.get(f".{each.name.rpartition('.')[2]}")
        if content_type is not None:
            body = each.read_bytes()
            etag = f'W/"{sha256(body).hexdigest()[:16]}"'
            found[each.name] = File(body, gzip.compress(body, mtime=0), content_type, etag)
    return found


def self_contained(run: Mapping[str, object]) -> str:
    """The page as one file that makes no requests and shows this run. The element `run` contains the run as JSON."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inlined(element: str, attributes: str, content: str) -> str:
        content = content.replace(f"</{element}", f"<\\/{element}")
        hashes[element].append(f"'sha256-{base64.b64encode(sha256(content.encode()).digest()).decode()}'")
        return f"<{element}{attributes}>{content}</{element}>"

    def script(found: re.Match[str]) -> str:
        attributes = f"{found[1]}{found[3]}".replace(" defer", "").rstrip()
        return inlined("script", attributes, _importing_by_name(_text(found[2])))

    page = _PRELOAD.sub("", _text(INDEX))
    modules = {name: _importing_by_name(_text(name)) for name in _imported(page)}
    page = _STYLE.sub(lambda found: inlined("style", "", _text(found[1])), page)
    page = _SCRIPT.sub(script, page)
    # Escape `<`, so that no text in the data can end the element.
    data = json.dumps(run, allow_nan=False).replace("<", "\\u003c")
    head = f'<script type="application/json" id="run">{data}</script>'
    if modules:
        urls = {name: f"data:text/javascript;base64,{_base64(text)}" for name, text in modules.items()}
        head += inlined("script", ' type="importmap"', json.dumps({"imports": urls}))
        hashes["script"].append("data:")
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">{head}'
    return _HEAD.sub(lambda found: found[0] + head, page, count=1)


def _text(name: str) -> str:
    return files()[name].body.decode()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _imported(page: str) -> list[str]:
    """The modules that the scripts of the page import, directly or not."""
    found: list[str] = []
    waiting = [name for _, name, _ in _SCRIPT.findall(page)]
    while waiting:
        for _, _, name in _IMPORT.findall(_text(waiting.pop())):
            if name not in found:
                found.append(name)
                waiting.append(name)
    return sorted(found)


def _importing_by_name(source: str) -> str:
    """The source of a module that imports others by name: relative paths do not resolve in a page without a server."""
    return _IMPORT.sub(r"\1\2\3\2", source)
