"""The page of the daemon: its files."""

from __future__ import annotations

import gzip
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


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page.

    Attributes:
        body: its content.
        compressed: the same by gzip.
        content_type: with its charset.
        etag: a weak entity tag, as both forms have the same one.
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
