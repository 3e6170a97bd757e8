"""Section 4: bounds, gradient estimators, training, checkpoints, prediction."""
