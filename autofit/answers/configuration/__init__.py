"""Lays out results about one configuration as sections: titled tables, sentences and figures."""
