"""Errors, top-k, calibration, caption scores and timing."""
