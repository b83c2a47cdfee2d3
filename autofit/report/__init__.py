"""Text and HTML reports of autofit's results."""
