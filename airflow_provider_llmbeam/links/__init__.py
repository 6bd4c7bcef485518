"""Buttons on the page of a task."""
