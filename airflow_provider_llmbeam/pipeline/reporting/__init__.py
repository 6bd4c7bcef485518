"""What is reported of a job: metrics and progress while it runs, the report when it ends."""
