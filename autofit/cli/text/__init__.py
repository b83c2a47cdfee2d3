"""Texts that commands print on a terminal; no other package imports rich."""
