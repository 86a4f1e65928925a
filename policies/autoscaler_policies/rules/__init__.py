"""Simple rules."""
