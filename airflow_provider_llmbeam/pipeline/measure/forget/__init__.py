"""Deletion: removes the answers of some rows from the files of a job."""
