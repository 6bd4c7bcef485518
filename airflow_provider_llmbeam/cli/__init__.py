"""The command `llmbeam`: jobs from a shell, without Airflow."""
