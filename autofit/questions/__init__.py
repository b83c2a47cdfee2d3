"""Questions beside `tune`: does it fit, how do models compare, what would save memory."""
