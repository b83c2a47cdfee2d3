"""Training scripts as they are: called in a process of their own, followed, and ended after a few steps.

running.py calls a script, watching.py follows its optimizer steps, loops.py its loops, batches/ its batches.
files.py keeps it from changing files, saving/ what it saves in memory, and guard/ keeps it from anything else
where there is no boundary around it. How a script is named is in `autofit_workers.spec.workloads.scripts`;
what a GPU that is not there answers, in `autofit_workers.tracing.scripts`.
"""
