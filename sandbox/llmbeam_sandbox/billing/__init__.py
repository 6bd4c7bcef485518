"""Accelerators of the emulated cloud: prices, quotas, provisioning settings, and the bill."""
