"""Views that `autofit profile` shows: rows of plain data about one step."""
