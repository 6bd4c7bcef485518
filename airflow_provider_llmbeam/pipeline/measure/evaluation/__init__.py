"""Evaluation of a job on a golden set, and comparison of two jobs, in this process and without a graph."""
