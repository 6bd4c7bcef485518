"""Steps of the graph: read, render, reuse, write, count and publish."""
