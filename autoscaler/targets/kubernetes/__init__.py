"""The target for Kubernetes objects that have a scale subresource."""
