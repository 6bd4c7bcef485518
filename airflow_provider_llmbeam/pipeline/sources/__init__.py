"""Sources of rows, one module per type."""
