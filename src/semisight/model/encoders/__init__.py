"""Section 2.2: recognition models q(s, z | X)."""
