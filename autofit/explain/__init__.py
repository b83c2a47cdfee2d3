"""Where memory and time go: views of a profile, a trace with the size of every allocation and a timed step.

    trace, card, knobs ─ PredictedCurve.profile ─▶ Profile ─▶ ops | scopes | code | tensors | …
         └─ step on the clock ─ timing_of ─▶ Timing ─┘ └─ document `autofit.profile/1` ─┘

A timing has shares of the step alone. What turns them into seconds is None where none are said, so that no
view can show any.

Nothing here needs torch, nor anything else beside the standard library: a saved profile can be looked at
anywhere.
"""
