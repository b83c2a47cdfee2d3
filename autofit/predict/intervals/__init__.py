"""How sure a peak is: errors of real runs, what workspaces may add, and peaks that were observed."""
