"""The service: one controller per cluster, the state store, the HTTP endpoints."""
