"""Floor 3. SAGE inside other people's engines: what they load, written against anchor/ alone."""
