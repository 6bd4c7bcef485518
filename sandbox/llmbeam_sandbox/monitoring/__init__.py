"""The emulated Cloud Monitoring."""
