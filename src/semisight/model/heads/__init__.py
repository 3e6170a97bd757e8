"""Section 3: what is said from the code."""
