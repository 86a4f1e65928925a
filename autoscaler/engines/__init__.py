"""Plug-ins that read the state of a job and of its scheduler."""
