"""Chooses the configuration to try next, without reading a storage or making a prediction.

    space     knob settings that are searched
    sizes     batch sizes that a setting can be run with
    curves    peak at any batch size, which guides the search
    boundary  largest fitting batch of one setting: proved from a curve, or measured in few trials
    choice    best configuration that fits, by batch or by throughput, and the throughput knee
    agenda    trials left once boundaries are known: measured rates, and a longer trial (soak) of the best
    pace      order of settings by usual speed; pareto, pruning: settings that need no trial
    sampler   the next trial: Optuna chooses the setting, the boundary the batch

Nothing is re-exported: importing optuna takes a second, and `boundary` does not need it.
"""
