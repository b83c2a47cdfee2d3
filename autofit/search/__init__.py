"""Which configuration to try next, and the durable record of what was tried.

    space     the knob settings that are searched
    boundary  the largest fitting batch of one setting: proved from a curve, or measured in few trials
    choice    the best of what fits, by batch or by throughput, and the throughput knee
    agenda    what is left once boundaries are known: rates, the winner's soak
    sampler   both as an Optuna sampler: Optuna chooses the setting, the boundary the batch
    ledger    what all trials come to, kept up as they are told
    storage   where studies are kept: journal, database; what is tried again when it cannot be reached
    records   how a trial is written, feed how those of others are read, owner whose it is
    study     the record: ask, tell, resume, reconciliation

Nothing is re-exported: importing optuna takes a second, and `boundary` does without it.
"""
