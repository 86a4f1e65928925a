"""The schedulers inside the jobs as pure functions: what Flink and Spark make of the slots they are given."""
