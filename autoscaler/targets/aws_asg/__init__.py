"""EC2 Auto Scaling groups."""
