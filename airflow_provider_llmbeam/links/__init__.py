"""Extra links: buttons on the page of a task."""
