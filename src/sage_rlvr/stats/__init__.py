"""Between floors 2 and 3. What samples say: counts, pass@k, intervals, frontiers, verdicts."""
