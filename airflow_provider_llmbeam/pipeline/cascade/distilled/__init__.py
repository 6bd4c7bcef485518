"""The distilled stage: a classifier learns from the sample, and answers blocks of rows in the process of Beam."""
