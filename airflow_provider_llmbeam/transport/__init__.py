"""HTTP to others' servers, for both processes: replies, redirects, token errors, Flink. No Airflow, no Beam."""
