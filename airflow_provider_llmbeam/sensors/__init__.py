"""Airflow sensors: conditions that a Dag waits for."""
