"""Name of the JSON document of a search, for code that tells documents apart and reads none of it."""

TUNE_SCHEMA = "autofit.tune/1"
