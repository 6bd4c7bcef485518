"""HTTP to the servers of others, for both processes: replies, redirects, token errors. No Airflow, no Beam."""
