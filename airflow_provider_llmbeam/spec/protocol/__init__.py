"""What the job's process hands back to the task: manifest, counts, alerts, previews."""
