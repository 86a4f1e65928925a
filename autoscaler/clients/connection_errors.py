"""Why a connection failed, in the words of the operating system."""

from __future__ import annotations

import os
import socket
import ssl


def describe_connection_error(error: BaseException) -> str:
    """The reason on one line, for a sentence that has named the address already."""
    where = getattr(error, "host", None)
    for inner in ("certificate_error", "os_error"):  # what aiohttp has met
        error = getattr(error, inner, error)
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, OSError) or not error.strerror:
        return text
    text = " ".join(error.strerror.split())  # of asyncio its own text, with the address that was tried
    if error.filename is not None:  # as of a token, which is read before a request
        return f"{text}: {error.filename}"
    if isinstance(error, socket.gaierror):
        return f"{text}: {where}" if where else text  # it may be a proxy
    if isinstance(error, ssl.SSLError) or not error.errno:
        return text
    meaning = os.strerror(error.errno)
    return text if meaning in text else f"{meaning}: {text}"
