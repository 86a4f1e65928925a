"""Decisions without the world: a simulated cluster, offered loads, the closed loop and its score."""
