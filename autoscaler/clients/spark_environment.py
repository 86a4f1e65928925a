"""Reads the page `/environment/` of Spark's web UIs, which shows the settings that a process was started with."""

from __future__ import annotations

import html
import re


def read_settings(page: str) -> dict[str, str] | None:
    """Return the Spark settings on a page, or None if it is another page (before Spark 4.0).

    Spark masks secrets. A setting that is missing has Spark's default.
    """
    if "Spark Properties" not in page:
        return None
    rows = re.findall(r"<td>(spark\.[^<]*)</td>\s*<td>([^<]*)</td>", page)
    return {html.unescape(key).strip(): html.unescape(value).strip() for key, value in rows}
