"""Views of where a step's memory and time go, made from a profile.

    trace, card, knobs ─ PredictedCurve.profile ─▶ Profile ─▶ ops | scopes | code | tensors | …
         └─ step on the clock ─ timing_of ─▶ Timing ─┘ └─ document `autofit.profile/1` ─┘

A profile is a trace with the size of every allocation, and the predicted times of one step. The times are
shares of the step; if its seconds are too uncertain to be shown, they are None.

This package needs the standard library only: a saved profile can be viewed
on any machine.
"""
