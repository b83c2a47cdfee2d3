"""Ranks that train together: a file for each kind of parallelism, and the code that all kinds share.

strategy        the hooks of a kind, and where its file is found
ddp fsdp fsdp1 zero tp cp ep pp    the kinds, as `autofit_workers.spec.parallel_kinds` names their files
ranks           this process as one of several ranks, by all their kinds together
meeting         the process group that measured ranks join, and what they agree on there
pipeline_plans  plans that cut models into stages, and the calls of those stages
alike_ranks     which ranks differ
model_copies    copies of a model that share its parts, and tensors on the device `meta`
"""
