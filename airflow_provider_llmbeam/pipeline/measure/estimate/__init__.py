"""The estimate of a job: a sample of its source and answers, a projection, and the comparison with the run."""
