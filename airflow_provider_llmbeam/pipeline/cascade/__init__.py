"""Which rows keep the answer of a cheaper stage: draws, calibration, choice and audit. Pure."""
