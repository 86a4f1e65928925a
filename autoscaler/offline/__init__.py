"""`autoscaler simulate`, `replay` and `benchmark`: decisions tried before they are made, connected to nothing."""
