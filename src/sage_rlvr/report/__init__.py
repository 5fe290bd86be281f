"""Floor 4. The HTML page and the explorer."""
