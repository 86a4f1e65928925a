"""Plug-ins that send notifications."""
