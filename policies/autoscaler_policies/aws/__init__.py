"""Step scaling and target tracking of EC2 Auto Scaling."""
