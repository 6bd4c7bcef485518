"""Fields of a spec: names, values given as text, and words for errors."""
