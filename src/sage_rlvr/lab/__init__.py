"""Floor 1. The exact tabular world that proves anchor/ right: no sampling, every expectation a finite sum."""
