"""The Beam graph around the engine. Never imports Airflow."""
