"""HTML report: one file that shows a result and the memory of a step.

    figures.py    data of a section ─▶ a figure, as plotly.js takes it
    icicle.py     … of the trees of modules
    roofline.py   … of kernels under the card's limits
    plotly_js.py  finds plotly.js, which the wheel holds
    still.py      a figure ─▶ SVG, for notebooks
    page.py       sections ─▶ the file, with plotly.js, style.css and scripts inlined in page.html.j2; for a
                  notebook's cell in small.html.j2; both lay sections out by sections.html.j2

The page loads nothing from elsewhere, so that it can be sent and archived as one file.
"""
