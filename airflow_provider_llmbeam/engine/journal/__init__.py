"""The journal: every answer, and every refused one, recorded as it arrives."""
