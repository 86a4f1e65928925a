"""Protocol clients, one per system. Sources, engines and targets share them."""
