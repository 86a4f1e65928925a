"""Clients of AWS services: one session and one small executor for each region and set of credentials."""
