"""A trial's processes: how they are started, told, watched and ended."""
