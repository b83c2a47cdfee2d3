"""Notebooks: answers shown as HTML, and progress.

    shown.py       base class of answers that a notebook shows
    progress.py    a progress bar by tqdm, where IPython runs

The HTML itself is made in `autofit.report.notebook`, of which the answers below it know only the name.
"""
