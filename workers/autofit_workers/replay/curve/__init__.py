"""From traces to a peak for any batch size."""
