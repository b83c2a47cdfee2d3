"""Explains the text of an out-of-memory error; the document is `autofit.explained-error/1`.

explained      the answer: what the text states, its cause, what to do, and changes that were computed
avoiding       changes of a workload with which it would have fitted
next_steps     sentences on what to do, by cause
"""
