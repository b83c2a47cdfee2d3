"""Peak of a step at any batch size, computed from its traces."""
