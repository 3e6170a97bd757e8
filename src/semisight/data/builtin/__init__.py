"""Sets that need no download."""
