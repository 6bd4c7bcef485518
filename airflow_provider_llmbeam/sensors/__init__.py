"""What a Dag waits for."""
