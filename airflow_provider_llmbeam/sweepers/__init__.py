"""The sweeper: removes endpoints, jobs, batch inference and uploads that nobody else removes."""
