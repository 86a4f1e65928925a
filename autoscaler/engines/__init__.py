"""In-job schedulers, watched."""
