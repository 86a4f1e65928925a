"""Plug-ins that scale something."""
