"""YAML to specs; every problem as file:line: path: message."""

from autoscaler.config.load import load

__all__ = ["load"]
