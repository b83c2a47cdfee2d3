"""Which configuration to try next, and the durable record of what was tried.

    space     the knob settings that are searched
    boundary  the largest fitting batch of one setting: proved from a curve, or measured in few trials
    choice    the best of what fits, by batch or by throughput, and the throughput knee
    agenda    what is left once boundaries are known: rates, the winner's soak
    sampler   both as an Optuna sampler: Optuna chooses the setting, the boundary the batch
    study     the record: storage, resume, reconciliation

Nothing is re-exported: importing optuna takes a second, and `boundary` does without it.
"""
