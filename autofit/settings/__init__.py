"""Every option once: what it may hold, where it may come from, and what it stands for."""
