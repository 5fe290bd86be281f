"""Floor 4. Tables, figures, the HTML page and the explorer."""
