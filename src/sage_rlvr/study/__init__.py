"""Floor 5. A study: one base, several variants, several seeds, each run resumable; then a table and a report."""
