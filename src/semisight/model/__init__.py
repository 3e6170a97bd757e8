"""Sections 2 and 3: tensors in, log-probabilities out. Imports torch and nothing else."""
