"""Pages of this package in the UI of Airflow."""
