"""`autoscaler demo`: a real cluster on this machine, scaled under a changing load."""

from autoscaler.demo import add_arguments, run

__all__ = ["add_arguments", "run"]
