"""Bounds and exclusion windows by the calendar."""
