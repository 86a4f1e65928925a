"""The default policy: keeps the delay of records below an objective at the least cost."""
