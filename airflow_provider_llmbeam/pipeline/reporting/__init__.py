"""Metrics and progress of a running job, and the report of a finished one."""
