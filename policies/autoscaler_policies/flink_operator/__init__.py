"""The autoscaler of the Flink Kubernetes operator."""
