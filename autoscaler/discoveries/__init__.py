"""Plug-ins that find the members of a fleet."""
