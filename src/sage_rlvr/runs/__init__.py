"""Floor 2. A run and its folder: one writer, whole checkpoints and how it goes on from them, Ctrl-C, what it says of itself."""
