"""Floor 5. Before a run: whether this machine and this config can do it (doctor), and what it will cost (plan)."""
