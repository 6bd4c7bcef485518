"""The emulated BigQuery, on DuckDB."""
