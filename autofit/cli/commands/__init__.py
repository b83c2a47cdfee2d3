"""The commands: parse, call, render."""
