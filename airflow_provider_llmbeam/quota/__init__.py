"""Quota health: from evidence through findings to a verdict and a recommendation."""
