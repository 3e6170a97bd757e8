"""A run: its settings, what it is composed from, its folder, and how it is loaded and used."""
