"""Pacing of requests: governor, gate, limit of concurrent requests, budget."""
