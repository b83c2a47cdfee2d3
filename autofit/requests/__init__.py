"""Requests: the smallest that fits a configuration, as schedulers read them.

asked.py       the cards on which it fits, in order, and the least memory of one
answer.py      the request for one scheduler, and the document `autofit.request/1`
text.py        YAML and comments
formats/       a file a scheduler
"""
