"""Chooses the configuration to try next, without reading a storage or making a prediction.

    space     the knob settings that are searched
    sizes     the batch sizes that a setting can be run with
    curves    a peak for any batch size, which guides the search
    boundary  the largest fitting batch of one setting: proved from a curve, or measured in few trials
    choice    the best of what fits, by batch or by throughput, and the throughput knee
    agenda    steps left once boundaries are known: rates, the winner's soak
    pace      which settings are usually faster; pareto, pruning: which of them need no trial
    sampler   the next trial: Optuna chooses the setting, the boundary the batch

Nothing is re-exported: importing optuna takes a second, and `boundary` does without it.
"""
