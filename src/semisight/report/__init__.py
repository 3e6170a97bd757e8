"""The report: one page that shows what a run learned, with every picture inside it."""
