"""The emulated Dataflow, which runs the jobs that are submitted to it."""
