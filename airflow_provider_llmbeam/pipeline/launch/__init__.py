"""Launching of a job: its runner, its options, and the package for its workers."""
