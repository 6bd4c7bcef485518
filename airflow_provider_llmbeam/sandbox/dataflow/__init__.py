"""The emulated Dataflow, which runs the jobs that it is sent."""
