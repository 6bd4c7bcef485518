"""Requests besides those for the prompts of the rows: to a guard model, and for answers that are repaired."""
