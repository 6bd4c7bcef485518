"""A task's job on Flink: find, submit, monitor, collect, cancel."""
