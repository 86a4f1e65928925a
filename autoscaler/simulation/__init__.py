"""Simulation: a simulated cluster, offered loads, the closed loop of decisions, and its score."""
