"""What finds the members of a fleet."""
