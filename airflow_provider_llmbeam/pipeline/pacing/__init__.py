"""Pacing of the requests of one machine, and what its next run knows of it."""
