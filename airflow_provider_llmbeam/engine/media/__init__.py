"""Files of prompts: their bytes, their size, and what of them is sent."""
