"""The demo with a batch job: a Spark cluster that is sized under it, beside one of fixed size with Spark's defaults."""
