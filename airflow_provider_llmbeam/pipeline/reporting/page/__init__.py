"""The report as a page: one file with everything in it, for a browser."""
