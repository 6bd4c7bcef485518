"""A task's job on Dataflow: find, submit, monitor, collect, cancel."""
