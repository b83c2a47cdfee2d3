"""Views of where a step's memory and time go, made from a profile.

    trace, card, knobs ─ PredictedCurve.profile ─▶ Profile ─▶ ops | scopes | code | tensors | …
         └─ step on the clock ─ timing_of ─▶ Timing ─┘ └─ document `autofit.profile/1` ─┘

A profile is a trace with the size of every allocation, and a timed step. A timing has only shares of the
step; its seconds are None where none are said, so that no view can show any.

This package needs no torch, nor anything else beside the standard library: a saved profile can be looked
at anywhere.
"""
