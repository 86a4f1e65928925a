"""One protocol client per system: what sources, engines and targets speak through."""
