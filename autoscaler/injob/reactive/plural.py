"""Counts in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 slot`, `2 slots`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agree(number: int, one: str, many: str) -> str:
    """The verb of so many: `is` or `are`."""
    return one if number == 1 else many
