"""Receivers of notifications."""
