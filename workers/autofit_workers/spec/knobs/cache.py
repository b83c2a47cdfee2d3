"""The knob `cache`: where keys and values are kept while tokens are generated.

The names are those of `cache_implementation` in transformers. `dynamic` grows by one token at a time, in a
new tensor; `static` has room for prompt and new tokens from the start; `quantized` keeps all but the last
tokens in 4 bits, by the library optimum-quanto.
"""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, one_of

CACHES = ("dynamic", "static", "quantized")

KNOB = Knob(
    name="cache",
    default="dynamic",
    read=one_of(CACHES),
    help="In mode generate, how keys and values are kept: transformers' cache_implementation.",
    values=CACHES,
    is_searchable=True,
    words={"dynamic": "a growing cache"},
    phrase="{} cache",
)
