"""A pool of worker processes on this machine."""
