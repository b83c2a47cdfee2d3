"""From traces to a peak for any batch size; nothing here needs torch."""
