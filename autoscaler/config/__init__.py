"""YAML to specs; every problem as file:line: path: message."""
