"""What is measured without a graph: estimate, evaluation, review, and what is forgotten."""
