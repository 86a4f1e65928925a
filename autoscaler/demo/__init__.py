"""A real Spark cluster under a changing load, scaled by the daemon, on this machine."""
