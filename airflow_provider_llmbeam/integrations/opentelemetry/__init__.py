"""Metrics and traces of jobs, through Airflow's statistics and its OpenTelemetry providers."""
