"""Turns results into sections: titles, tables and sentences as data, for the terminal and the HTML page.

    section.py        sections and their blocks: paragraphs, tables, bullets, code, figures
    figures.py        data of figures, which the HTML page draws
    memory.py         the memory at a peak by category, for any answer
    tune/             a search's answer, and the code lines that apply it
    configuration/    answers about one configuration: estimate, check, cards, …
    profile/          views of a profile
    words/            phrases and number formats for all answers

Functions take a result and return its sections, whether they are shown on a terminal or on a page.
"""
