"""Review of answers by people: a sample of them, and the golden rows that their verdicts make."""
