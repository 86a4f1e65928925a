"""Why a connection failed, in the words of the operating system."""

from __future__ import annotations

import os
import socket
import ssl


def describe_connection_error(error: BaseException) -> str:
    """The reason on one line. The caller's message must already name the address."""
    where = getattr(error, "host", None)
    for inner in ("certificate_error", "os_error"):  # aiohttp wraps the original error in these attributes
        error = getattr(error, inner, error)
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, OSError) or not error.strerror:
        return text
    text = " ".join(error.strerror.split())  # asyncio puts its own text there, with the address that it tried
    if error.filename is not None:  # such as a token file, which is read before a request
        return f"{text}: {error.filename}"
    if isinstance(error, socket.gaierror):
        return f"{text}: {where}" if where else text  # the host may be a proxy, so name it
    if isinstance(error, ssl.SSLError) or not error.errno:
        return text
    meaning = os.strerror(error.errno)
    return text if meaning in text else f"{meaning}: {text}"
