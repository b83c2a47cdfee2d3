"""Runs an unmodified training script in a separate process, counts its steps, and ends it after a few.

running.py runs a script, watching.py follows its optimizer steps, loops.py its loops, batches/ its batches.
files.py keeps a script from changing files, saving/ keeps in memory what it saves, and guard/ keeps it from
other effects where no process boundary surrounds it. `autofit_workers.spec.workloads.scripts` has the
references of scripts, `autofit_workers.tracing.scripts` the answers of a fake GPU.
"""
