"""Views of where a step's memory and time go, made from a profile.

    trace, card, knobs ─ PredictedCurve.profile ─▶ Profile ─▶ ops | scopes | code | tensors | …
         └─ step on the clock ─ timing_of ─▶ Timing ─┘ └─ document `autofit.profile/1` ─┘

A profile is a trace with the size of every allocation, and a timed step. A timing has shares of the
step only; if its seconds are too uncertain they are None, so that no view can show them.

This package needs the standard library only: a saved profile can be viewed
on any machine.
"""
