"""Triggers: polling in the triggerer, without a worker slot."""
