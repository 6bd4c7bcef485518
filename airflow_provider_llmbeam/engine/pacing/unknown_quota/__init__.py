"""Pacing of a server whose quota is not known: its rate is learned from its 429s."""
