"""The demo on a real Spark standalone cluster."""
