"""Floor 4. From a recipe and the command line to a training: settings, data, SFT, several processes, the run."""
