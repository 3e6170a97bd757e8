"""Readers, one per format."""
