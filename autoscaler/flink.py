"""The client of Flink's REST API, shared by the source, the engine and the target that speak to it."""
