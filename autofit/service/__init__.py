"""What a run shows of itself: its events, and the metrics made of them."""
