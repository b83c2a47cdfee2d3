"""HTML report: one file that shows a result and the memory of a step.

    content.py    what a page shows, as plain data         autofit.report.gather gathers it
    figures.py    data ─▶ figures, as plotly.js takes them
    icicle.py     … of the trees of modules
    roofline.py   … of kernels under the card's limits
    tables.py     data ─▶ tables
    page.py       content ─▶ the file, with plotly.js, style.css and page.js inlined in page.html.j2

Nothing of the page is loaded from elsewhere, so that it can be sent to somebody and kept.
"""
