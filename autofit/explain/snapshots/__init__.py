"""A real run's memory snapshot, explained: what it took, what grew, what lay unused, and where it differs.

run         the snapshot followed block by block, with its steps and its peak
steps       where steps begin: by what the program named, or by what repeats
findings    lines at the peak, what grew between steps, unused memory, copies in twice the bytes
matching    real allocations beside the predicted ones, in order
as_profile  the snapshot as a profile, for the views and exports of `autofit profile`
"""
