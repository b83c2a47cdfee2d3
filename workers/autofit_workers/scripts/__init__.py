"""Training scripts as they are: called in a process of their own, followed, and ended after a few steps.

reference.py says how a script is called, running.py calls it, watching.py follows its optimizer steps,
files.py keeps it from changing files, guard/ from anything else where there is no boundary around it. What a
GPU that is not there answers is in `autofit_workers.tracing.scripts`.
"""
