"""The REST API of a session cluster of Apache Flink."""
