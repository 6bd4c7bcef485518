"""When a request may leave: governor, gate, limit of concurrent requests, budget."""
