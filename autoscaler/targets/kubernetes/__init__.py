"""Anything on Kubernetes that has a scale subresource."""
