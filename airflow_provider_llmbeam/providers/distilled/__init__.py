"""The classifiers that cascades learn: plain JSON, and what answers by it."""
