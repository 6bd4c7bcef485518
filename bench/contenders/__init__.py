"""The contenders, one file each; a process imports only its own. See `bench.lineup`."""
