"""The history of a fleet, on Spark: a dataset of observations, decisions and rescales; profiles; back-tests."""
