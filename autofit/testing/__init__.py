"""Plugin for pytest: predicted GPU memory as a test.

plugin     pytest's hooks; imports nothing else until a test has the mark or asks for the fixture
names      what the mark, the fixture, the option and the settings are called
marked     a test with the mark `memory`: its workload is predicted and judged
judging    what is wrong with a predicted peak: against the card, a limit, and the lock
records    peaks of all tests of a run, in the lock and at the end of pytest's output
blocks     the fixture `peak_memory`: what a block of a test would take
outcomes   errors of autofit as failures and skips of a test
forked     a test in a fork of pytest's process, which PyTorch may stay patched in
"""
