"""HTML report: one file that shows a result and the memory of a step.

    figures.py    data of a section ─▶ a figure, as plotly.js takes it
    icicle.py     … of the trees of modules
    roofline.py   … of kernels under the card's limits
    plotly_js.py  finds plotly.js, which the wheel holds
    page.py       sections ─▶ the file, with plotly.js, style.css, drawing.js, page.js in page.html.j2

The page loads nothing from elsewhere, so that it can be sent and archived as one file.
"""
