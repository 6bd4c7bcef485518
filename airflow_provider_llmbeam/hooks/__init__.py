"""One service per file."""
