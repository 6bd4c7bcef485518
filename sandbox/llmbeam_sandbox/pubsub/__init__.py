"""The emulated Pub/Sub."""
