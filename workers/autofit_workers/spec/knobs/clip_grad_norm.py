"""The knob `clip_grad_norm`: the norm that the gradients of all parameters together are clipped to."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, or_none, positive_number

KNOB = Knob(
    name="clip_grad_norm",
    default=None,
    read=or_none(positive_number),
    help="Clip the norm of all gradients to this before the optimizer steps, with "
    "torch.nn.utils.clip_grad_norm_; in amp-fp16 once they are unscaled.",
    metavar="NORM",
    of_training=True,
    words={None: "gradients not clipped"},
    phrase="gradients clipped to a norm of {}",
)
