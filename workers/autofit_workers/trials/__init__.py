"""Runs trials, each a few steps of one configuration in a child process, which alone imports torch.

door.py       everything that `autofit` may import of this package besides `spec`, `process`, `replay`
run.py        runs a trial in the right process: a fresh one, one for each rank, or a shared one
isolate.py supervision.py ranks.py outcomes.py    supervise a trial's process from outside
child.py      main program of a trial's process
measure/      measures steps on CUDA and on the CPU
model_parts.py listing_parts.py    lists a language model's parameters
record.py     records ground truth on a machine with a GPU
"""
