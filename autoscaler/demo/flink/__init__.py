"""The demo on a real Flink in Reactive Mode."""
