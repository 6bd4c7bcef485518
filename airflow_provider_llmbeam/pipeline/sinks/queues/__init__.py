"""Sinks that answers are sent to as messages."""
