"""Message queues: their clients, and which messages a run takes."""
