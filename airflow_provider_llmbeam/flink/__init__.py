"""Jobs of a Flink cluster, through its REST API; without Airflow and without Beam, used by both sides."""
