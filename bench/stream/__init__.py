"""The resident stream worker on a real broker of Kafka: kills, latency, memory, and the lag after a stop."""
