"""The card: the catalogue, its chips, what a process holds on it, and the budget that is left."""
