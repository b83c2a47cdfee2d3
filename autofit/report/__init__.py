"""Answers of autofit as text and as HTML reports."""
