"""Thin Airflow operators."""
