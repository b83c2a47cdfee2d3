"""Studies: durable records of a search's trials in an Optuna storage.

A coordinator is a search in some process, which asks for trials and records them; several coordinators may
share a study.

study     the record: propose, record, resume, reconcile
ledger    state of the search in memory, updated with each trial
storage   journal files and databases; repeats operations while a storage cannot be reached
records   stored form of a trial; feed reads other processes' trials, owner says which process has one
"""
