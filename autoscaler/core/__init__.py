"""The pure core: frozen dataclasses in, frozen dataclasses out. No clock, no I/O, no log."""
