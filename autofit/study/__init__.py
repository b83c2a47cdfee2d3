"""Studies: durable records of a search's trials in an Optuna storage.

study     the record: ask, tell, resume, reconciliation
ledger    what all trials come to, kept up as they are told
storage   where studies are kept: journal, database; what is tried again when it cannot be reached
records   how a trial is written, feed how those of others are read, owner whose it is
"""
