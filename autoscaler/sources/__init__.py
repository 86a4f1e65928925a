"""Plug-ins that read metrics."""
