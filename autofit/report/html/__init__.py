"""HTML report: one file that shows a result and the memory of a step.

    figures.py    data of a section ─▶ a figure, as plotly.js takes it
    icicle.py     … of the trees of modules
    roofline.py   … of kernels under the card's limits
    page.py       sections ─▶ the file, with plotly.js, style.css and page.js inlined in page.html.j2

Nothing of the page is loaded from elsewhere, so that it can be sent to somebody and kept.
"""
