"""Processes: how one is started, told, heard, restricted and ended. The standard library suffices here."""
