"""What several policies use."""
