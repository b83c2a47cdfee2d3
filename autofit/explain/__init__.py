"""Where the memory goes: views of a profile, which is a trace with the size of every allocation.

    trace, card, knobs ─ PredictedCurve.profile ─▶ Profile ─▶ ops | scopes | code | tensors | …
                                                     └─ document `autofit.profile/1` ─┘

Nothing here needs torch, nor anything else beside the standard library: a saved profile can be looked at
anywhere.
"""
