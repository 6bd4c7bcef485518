"""Versions of registered models, and the aliases that are moved between them."""
