"""The demo with a batch job: a Spark cluster that the daemon scales, compared with a fixed one on Spark's defaults."""
