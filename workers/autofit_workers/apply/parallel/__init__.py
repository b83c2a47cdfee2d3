"""Ranks that train together: a file for each kind of parallelism, and the code that all kinds share.

strategy        base class of the kinds, and the look-up of their files
ddp fsdp fsdp1 zero tp cp ep pp    the kinds, as `autofit_workers.spec.parallel_kinds` names their files
ranks           applies all kinds of a trial's parallelism to one rank
meeting         process group of measured ranks, and agreement among them
pipeline_plans  plans that cut models into stages, and the calls of those stages
alike_ranks     groups of ranks with equal shards
model_copies    copies of a model that share its parts, and tensors on the device `meta`
"""
