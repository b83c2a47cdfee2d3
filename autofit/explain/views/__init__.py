"""Views that `autofit profile` shows: rows of plain data about memory and time of one step."""
