"""How a job is launched: its runner, its options, its package for the workers."""
