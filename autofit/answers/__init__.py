"""Answers as sections: titles, tables and sentences as data, which terminal and HTML page lay out.

    section.py        sections and their blocks: paragraphs, tables, bullets, code, figures
    figures.py        data of figures, which the HTML page draws
    memory.py         where the memory goes, in any answer
    tune/             a search's answer, and the code lines that apply it
    configuration/    answers about one configuration: estimate, check, cards, …
    profile/          views of a profile
    words/            phrases and number formats that all of them share

A function takes a result and returns its sections; nothing here knows where they are shown.
"""
