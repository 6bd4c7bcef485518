"""The constant head of a job's prompts, and whether an explicit cache of the provider for it pays."""
