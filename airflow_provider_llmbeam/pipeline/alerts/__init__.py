"""Alerts of a run: what raises one, and that each is raised once."""
