"""Reads the YAML configuration into specs. Every problem is reported as `file:line: path: message`."""

from autoscaler.config.load import load
from autoscaler.config.schema import json_schema

__all__ = ["json_schema", "load"]
