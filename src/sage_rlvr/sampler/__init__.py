"""Floor 3. vLLM beside training: the engine in its process, a server elsewhere, the next batch drawn ahead."""
