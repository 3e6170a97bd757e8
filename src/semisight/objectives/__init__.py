"""Section 4: the bound, its gradient, targets, and what goes beyond the paper."""
