"""Alerts of a job, sent by Airflow's notifiers."""
