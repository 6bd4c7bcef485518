"""The emulated Cloud Quotas."""
