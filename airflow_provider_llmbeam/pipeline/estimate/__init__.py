"""What a job will take, before it runs: a sample of its source and of its answers, and a projection."""
