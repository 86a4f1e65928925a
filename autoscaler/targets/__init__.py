"""What is scaled."""
