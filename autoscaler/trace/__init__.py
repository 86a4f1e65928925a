"""Traces: recorded observations and decisions, how they are written and read, and replayed."""
