"""Tables like those of TPC-H as Parquet files: customer, orders, lineitem. The same scale gives the same data."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

CUSTOMERS, ORDERS, LINES = 1_000, 10_000, 4
"""Customers and orders at a scale of 1, and lines per order."""

NATIONS = 25
LARGE_CUSTOMER = 1
"""The customer who has 3 out of 10 orders."""
LARGE_SHARE = 0.3

PAYLOAD = 512
"""Incompressible bytes of an order, which make up the volume of shuffles."""

MAX_FILES = 64

SCHEMAS = {
    "customer": "c_custkey long, c_nationkey long, c_comment binary",
    "orders": "o_orderkey long, o_custkey long, o_cents long, o_comment binary",
    "lineitem": "l_orderkey long, l_linenumber long, l_cents long",
}
"""The schema of each table in Spark's syntax, so that Spark need not read it from the files."""


def files(scale: float) -> int:
    """The number of files of lineitem, and so of the tasks that can read it."""
    return max(1, min(MAX_FILES, round(8 * scale)))


def order_files(scale: float) -> int:
    """The number of files of orders: as many tasks write them, and a skewed partition has at most as many splits."""
    return -(-files(scale) // 4)


def write_tables(directory: Path, scale: float) -> None:
    """Write the tables, each into a directory of its name: `scale` times 1 000 customers, 10 000 orders, 40 000 lines.

    Raises:
        OSError: a file cannot be written.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - it belongs to an extra

    chance = random.Random(1)  # noqa: S311 - no secret
    customers, orders = round(CUSTOMERS * scale), round(ORDERS * scale)

    def write(name: str, rows: int, parts: int, columns: Callable[[range], Mapping[str, pa.Array]]) -> None:
        place = directory / name
        place.mkdir(parents=True)
        for part in range(parts):
            numbers = range(rows * part // parts, rows * (part + 1) // parts)
            pq.write_table(_table(columns(numbers)), place / f"{part:03}.parquet")

    write("customer", customers, 1, lambda numbers: _customer(numbers, chance))
    write("orders", orders, order_files(scale), lambda numbers: _orders(numbers, customers, chance))
    write("lineitem", LINES * orders, files(scale), _lineitem)


def _table(columns: Mapping[str, pa.Array]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - it belongs to an extra

    return pa.table(dict(columns))


def _customer(numbers: range, chance: random.Random) -> Mapping[str, pa.Array]:
    return {
        "c_custkey": _longs(number + 1 for number in numbers),
        "c_nationkey": _longs(number % NATIONS for number in numbers),
        "c_comment": _payload(len(numbers), chance),
    }


def _orders(numbers: range, customers: int, chance: random.Random) -> Mapping[str, pa.Array]:
    return {
        "o_orderkey": _longs(numbers),
        "o_custkey": _longs(_customer_of(number, customers) for number in numbers),
        "o_cents": _longs(10_000 + number * 7919 % 1_000_000 for number in numbers),
        "o_comment": _payload(len(numbers), chance),
    }


def _customer_of(order: int, customers: int) -> int:
    """The customer of an order: the large customer for 3 out of 10 orders, otherwise the others in turn."""
    return LARGE_CUSTOMER if order % 10 < 10 * LARGE_SHARE else 2 + order * 31 % (customers - 1)


def _lineitem(numbers: range) -> Mapping[str, pa.Array]:
    return {
        "l_orderkey": _longs(number // LINES for number in numbers),
        "l_linenumber": _longs(number % LINES for number in numbers),
        "l_cents": _longs(100 + number * 7919 % 100_000 for number in numbers),
    }


def _longs(numbers: object) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - it belongs to an extra

    return pa.array(numbers, pa.int64())


def _payload(rows: int, chance: random.Random) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - it belongs to an extra

    data = pa.py_buffer(chance.randbytes(PAYLOAD * rows))
    return pa.Array.from_buffers(pa.binary(PAYLOAD), rows, [None, data])
