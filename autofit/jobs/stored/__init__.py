"""Jobs as the storage has them: attributes (of a job's trial, by name), database (read without Optuna)."""
