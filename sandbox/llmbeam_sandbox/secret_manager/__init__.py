"""The emulated Secret Manager."""
