"""Floor 2. What a training leaves in its folder, and how it goes on from it: checkpoints that are whole, Ctrl-C, one writer."""
