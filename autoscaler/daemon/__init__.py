"""The service: one controller per cluster, the journal, the HTTP doors."""
