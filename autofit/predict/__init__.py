"""A trace becomes a peak on a card: how much, how sure, and by which plans of convolutions."""
