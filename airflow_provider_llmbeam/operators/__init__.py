"""Thin Airflow classes."""
