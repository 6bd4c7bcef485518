"""All that knows the wire format of a model API: a folder for each family, and what they share."""
