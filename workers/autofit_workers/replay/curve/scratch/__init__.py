"""Memory that operators take and give back unseen, by card and library."""
