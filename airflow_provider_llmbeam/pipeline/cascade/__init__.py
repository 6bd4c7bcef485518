"""A cascade: cheaper models answer first, and `model` what they are not sure of."""
