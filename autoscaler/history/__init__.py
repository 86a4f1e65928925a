"""The history of a fleet, on Spark: observations, decisions and rescales as a dataset; profiles and back-tests."""
