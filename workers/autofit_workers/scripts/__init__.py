"""Runs an unmodified training script in a separate process, counts its steps, and ends it after a few.

running.py calls a script, watching.py follows its optimizer steps, loops.py its loops, batches/ its batches.
files.py keeps a script from changing files, saving/ keeps in memory what it saves, and guard/ keeps it from
changing anything else where there is no boundary around it. How a script is named is in
`autofit_workers.spec.workloads.scripts`; what a fake GPU answers, in `autofit_workers.tracing.scripts`.
"""
