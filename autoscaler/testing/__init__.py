"""Fakes, virtual time and contract tests for plug-in authors."""
