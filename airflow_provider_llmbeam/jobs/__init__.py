"""A task's job, in a process of the worker, on Dataflow or on Flink: find, submit, monitor, cancel, collect."""
