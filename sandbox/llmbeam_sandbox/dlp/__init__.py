"""The emulated Sensitive Data Protection (Cloud DLP)."""
