"""Section 5, one flat file per table or figure."""
