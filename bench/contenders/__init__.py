"""The contenders, one file each; a process imports only its own contender. See `bench.registry`."""
