"""The reason for a failed connection is reported once, in the words of the operating system."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from autoscaler.clients.connection_errors import describe_connection_error


async def failure(port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> str:
    """The error message for an address that refuses connections."""
    with pytest.raises(OSError, match=r".") as raised:
        await asyncio.open_connection(host, port, ssl=tls)
    return describe_connection_error(raised.value)


async def test_a_refused_connection_is_reported_as_refused_with_the_address(unused_tcp_port: int) -> None:
    expected = f"Connection refused: Connect call failed ('127.0.0.1', {unused_tcp_port})"
    assert await failure(unused_tcp_port) == expected


async def test_the_error_for_an_unknown_host_name_has_no_error_number() -> None:
    said = await failure(1, "nowhere.invalid")
    assert said
    assert "Errno" not in said


async def test_an_error_number_of_name_resolution_is_not_one_of_the_operating_system() -> None:
    """They are positive on macOS, where 8 is also the number of an error for executables."""
    error = socket.gaierror(8, "nodename nor servname provided, or not known")
    assert describe_connection_error(error) == "nodename nor servname provided, or not known"


async def test_the_unknown_host_name_of_a_proxy_is_named() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as raised:
            await session.get("http://127.0.0.1/", proxy="http://someone:secret@proxy.invalid:3128")
    said = describe_connection_error(raised.value)
    assert said.endswith(": proxy.invalid")
    assert "secret" not in said


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        Path("/nowhere/token").read_bytes()
    assert describe_connection_error(raised.value) == "No such file or directory: /nowhere/token"


async def test_a_server_without_tls_is_not_reported_as_an_error_of_the_operating_system() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        said = await failure(port, tls=ssl.create_default_context())
    assert said.startswith("[SSL: ")
    assert "not permitted" not in said


def test_a_text_of_the_operating_system_is_not_repeated_and_no_text_is_taken_for_a_name(unused_tcp_port: int) -> None:
    with pytest.raises(ConnectionRefusedError) as raised:
        socket.create_connection(("127.0.0.1", unused_tcp_port))
    assert describe_connection_error(raised.value) == "Connection refused"
    assert describe_connection_error(ConnectionAbortedError()) == "ConnectionAbortedError"
