"""Scripts that measure, and the pages of results."""
