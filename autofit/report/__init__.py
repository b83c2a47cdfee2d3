"""HTML reports: an answer's sections with figures of the peak curves and of the step's memory and time."""
