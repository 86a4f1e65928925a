"""Engines: the state of the schedulers inside jobs."""
