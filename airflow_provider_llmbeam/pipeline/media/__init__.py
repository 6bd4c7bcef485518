"""Files of prompts: where they are stored, and what is uploaded of them."""
