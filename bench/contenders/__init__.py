"""The contenders, one file each; a process imports its own alone. See `bench.lineup`."""
