"""The emulated Cloud Storage."""
