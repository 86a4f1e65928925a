"""KEDA's Kafka scaler with the HPA behind it."""
