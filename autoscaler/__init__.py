"""The autoscaler for reactive streaming clusters: how many workers should there be, and why."""
