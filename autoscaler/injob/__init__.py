"""What a PySpark job imports."""
