"""Predicted step times on a card, and measured steps that correct them."""
