"""The Kubernetes Horizontal Pod Autoscaler v2."""
