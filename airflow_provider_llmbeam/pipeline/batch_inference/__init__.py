"""Batch inference of a job: request files are prepared, submitted and harvested, before the job runs online."""
