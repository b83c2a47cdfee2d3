"""Former names of `autofit.events` and `autofit.serve.metrics`, until 0.3."""
