"""The emulated Cloud Run."""
