"""Doors to other systems: OpenLineage, OpenTelemetry, the pages in Airflow, and Airflow's common-ai provider."""
