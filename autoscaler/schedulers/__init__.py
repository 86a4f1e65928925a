"""The schedulers inside the jobs as pure functions: how Flink and Spark use the slots they get."""
