"""Ranks that train together: a file for each kind of parallelism, and what all kinds go through.

strategy        what a kind may do, and where its file is found
ddp fsdp fsdp1 zero tp cp ep pp    the kinds, as `autofit_workers.spec.parallel_kinds` names their files
ranks           this process as one of several ranks, by all their kinds together
meeting         the process group that measured ranks join, and what they agree on there
pipeline_plans  how models are cut into stages, and called in them
alike_ranks     which ranks differ
model_copies    copies of a model that share its parts, and tensors that are nowhere
"""
