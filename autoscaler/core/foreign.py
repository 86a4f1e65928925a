"""Texts of foreign code, such as an exception that a plug-in raises: it may have any text, or none."""

from __future__ import annotations

import json
import re
import string
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from urllib.parse import quote

MAX_TEXT = 2000
"""The most characters of a foreign text that are kept and shown."""

_MAX_READ = 10 * MAX_TEXT

_SHORTEST = 4
_BASE64 = frozenset(string.ascii_letters + string.digits + "+/-_=")


class Mask:
    """Hides secrets in texts: plain, quoted, escaped, and in base64 also as a part of a longer encoded text."""

    def __init__(self) -> None:
        self._plain: list[str] = []
        self._encoded: list[str] = []
        self._known: set[str] = set()

    def hide(self, *secrets: str) -> None:
        """Hide these secrets too, except those of fewer than four characters: that would garble every text."""
        new = {*secrets} - self._known
        self._known |= new
        plain = {form for secret in new for form in _written(secret) if len(form) >= _SHORTEST}
        self._plain = sorted({*self._plain, *plain}, key=len, reverse=True)
        self._encoded += {form for secret in new if len(secret) >= _SHORTEST for form in _encoded(secret)}

    def __call__(self, text: str) -> str:
        """The text with `***` in place of every secret."""
        for form in self._plain:
            text = text.replace(form, "***")
        for form in self._encoded:
            if form in text:
                text = _without_base64(text, form)
        return text


def _without_base64(text: str, form: str) -> str:
    """The text with `***` in place of every base64 string that contains this form."""
    parts: list[str] = []
    done = 0
    while (at := text.find(form, done)) >= 0:
        begin, end = at, at + len(form)
        while begin > done and text[begin - 1] in _BASE64:
            begin -= 1
        while end < len(text) and text[end] in _BASE64:
            end += 1
        parts += text[done:begin], "***"
        done = end
    return "".join((*parts, text[done:]))


def _written(secret: str) -> Iterator[str]:
    """The forms in which programs write a secret."""
    for text in {secret, secret.strip(), " ".join(secret.split())}:
        yield text
        yield repr(text)[1:-1]
        yield escape(text)
        for character in ("", "/"):
            quoted = quote(text, safe=character, errors="surrogatepass")
            yield quoted
            yield quoted.replace("%20", "+")
            yield re.sub("%..", lambda code: code[0].lower(), quoted)
        for ascii_only in (False, True):
            once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            yield once
            yield once.replace("/", "\\/")
            yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]


def _encoded(secret: str) -> Iterator[str]:
    """The base64 forms of a secret within a longer text, such as `user:password`."""
    data = secret.encode(errors="surrogatepass")  # an environment variable may not be valid text
    for before in range(3):
        # Only the characters whose bits all belong to the secret.
        first, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        form = b64encode(b"\0" * before + data).decode()[first:end]
        yield form
        yield form.replace("+", "-").replace("/", "_")


mask = Mask()
"""Hides the secrets of the current configuration. Code that reads a foreign text masks it before it shortens it."""


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """A text, shortened to a length, without lone surrogates, which cannot be stored."""
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def foreign_text(value: object) -> str:
    """The text of a foreign object, such as an exception's message, on one line of at most `MAX_TEXT` characters."""
    try:
        text = str(value)
    except BaseException as raised:  # noqa: BLE001 - its __str__ is foreign code too
        text = f"its text cannot be shown: {type(raised).__name__}"
    # Shortened after masking: a secret that was cut would not be recognized.
    return shorten(" ".join(mask(text[:_MAX_READ]).split()))


def format_exception(error: BaseException) -> str:
    """A foreign exception with its type, on one line, shortened. It never raises."""
    text = foreign_text(error)
    name = shorten(type(error).__name__, 100)
    return f"{name}: {text}" if text else name
