"""Airflow hooks, one service per module."""
