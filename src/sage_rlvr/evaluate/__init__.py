"""Floor 3. Sampling backends, results and comparisons."""
