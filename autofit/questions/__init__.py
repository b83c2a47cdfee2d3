"""What one asks beside `tune`: does it fit, how do models compare, what would save memory."""
