"""A server with the part of Kafka's protocol that the source needs; it answers with the errors that a test sets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

OFFSETS, METADATA, COMMITS, COORDINATOR, VERSIONS = 2, 3, 9, 10, 18
SPOKEN = {OFFSETS: (3, OffsetRequest), METADATA: (5, MetadataRequest), COMMITS: (3, OffsetFetchRequest)}
SPOKEN |= {COORDINATOR: (1, FindCoordinatorRequest), VERSIONS: (0, ApiVersionRequest)}
EARLIEST = -2


@dataclass
class Stub:
    """A broker that leads all partitions and, if no other does, coordinates all groups.

    Attributes:
        ends: topic -> end offsets by partition.
        starts: topic -> first offsets, if they are not 0.
        commits: (group, topic) -> committed offsets by partition.
        faults: request -> error codes of the next answers, one after the other.
        leaderless: partitions (of any topic) without a leader.
        silent: requests that get no answer at all.
        coordinator: port of the broker that coordinates all groups, if it is not this one.
        asked: the requests, in order, with the topics or the group.
        connections: how many were opened.
    """

    ends: dict[str, list[int]] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)
    commits: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    faults: dict[int, list[int]] = field(default_factory=dict)
    leaderless: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    coordinator: int = 0
    asked: list[tuple[int, Any]] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, kind: int) -> int:
        """The number of requests of this kind."""
        return sum(each == kind for each, _ in self.asked)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = BytesIO(await reader.readexactly(size))
                kind, version, number, name = struct.unpack(">hhih", frame.read(10))
                frame.read(name)
                requests = {each.API_VERSION: each for each in SPOKEN[kind][1]._CLASSES}
                request = requests[version].decode(frame)
                if kind in self.silent:
                    await reader.read()  # nor are later requests, as a connection is answered in order
                    return
                fields = self.answer(kind, request)
                answer = struct.pack(">i", number) + request.RESPONSE_TYPE(*fields).encode()
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, as it should
        finally:
            writer.close()

    def fault(self, kind: int) -> int:
        """Return the error code of the next answer."""
        return self.faults[kind].pop(0) if self.faults.get(kind) else 0

    def answer(self, kind: int, request: Any) -> tuple[Any, ...]:
        """Return the fields of an answer."""
        if kind == VERSIONS:
            return 0, [(key, 0, version) for key, (version, _) in SPOKEN.items()]
        code = self.fault(kind)
        if kind == METADATA:
            assert request.topics, "asked for all topics"
            assert request.allow_auto_topic_creation is False, "would make topics"
            self.asked.append((kind, sorted(request.topics)))
            broker = [(0, "127.0.0.1", self.port, None)]
            return 0, broker, "stub", 0, [self.topic(name, code) for name in request.topics]
        if kind == COORDINATOR:
            self.asked.append((kind, request.coordinator_key))
            return 0, code, None, 0, "127.0.0.1", self.coordinator or self.port
        topics = [(topic, partitions) for topic, partitions in request.topics]
        if kind == COMMITS:
            self.asked.append((kind, (request.consumer_group, topics)))
            # A code is the group's error; with 100 added it is the error of one of the partitions.
            part = code - 100 if code > 100 else 0
            if code and not part:
                return 0, [], code
            return 0, [(topic, self.committed(request.consumer_group, topic, ps, part)) for topic, ps in topics], 0
        self.asked.append((kind, topics))
        return 0, [(topic, [self.offset(topic, n, which, code) for n, which in wanted]) for topic, wanted in topics]

    def topic(self, name: str, code: int) -> tuple[Any, ...]:
        if code or name not in self.ends:
            return code or 3, name, False, []
        leaders = [-1 if number in self.leaderless else 0 for number in range(len(self.ends[name]))]
        return 0, name, False, [(5 if led else 0, n, led, [0], [0], []) for n, led in enumerate(leaders)]

    def committed(self, group: str, topic: str, partitions: list[int], code: int) -> list[tuple[Any, ...]]:
        known = self.commits.get((group, topic), [])
        return [(number, known[number] if number < len(known) else -1, "", code) for number in partitions]

    def offset(self, topic: str, number: int, which: int, code: int) -> tuple[int, int, int, int]:
        known = self.starts.get(topic, [0] * len(self.ends[topic])) if which == EARLIEST else self.ends[topic]
        return number, code, -1, -1 if code else known[number]


@asynccontextmanager
async def stub(**settings: Any) -> AsyncIterator[Stub]:
    server = Stub(**settings)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
