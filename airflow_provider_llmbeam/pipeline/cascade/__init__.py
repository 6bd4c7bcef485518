"""A cascade: cheaper models answer first. Draws, calibration, choice and audit are pure; the others run them."""
