"""Traces of recorded observations and decisions: writing, reading and replaying them."""
