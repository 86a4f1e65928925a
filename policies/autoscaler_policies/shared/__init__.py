"""Code that several policies use."""
