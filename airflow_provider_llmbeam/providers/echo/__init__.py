"""The echo model, which returns its input."""
