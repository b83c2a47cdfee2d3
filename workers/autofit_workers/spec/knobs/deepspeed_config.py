"""Makes DeepSpeed's config from a knob setting; all other fields keep DeepSpeed's defaults.

The fields are those of DeepSpeed 0.19's runtime/config.py, precision_config.py and zero/config.py.
"""

from __future__ import annotations

from typing import Any

from autofit_workers.spec.knobs.setting import Knobs
from autofit_workers.spec.parallel_kinds import Zero

# Both mixed precisions keep a rank's own part of the weights in float32, besides the weights to compute with.
PRECISION_SECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "amp-bf16": {"bf16": {"enabled": True}},
    # With DeepSpeed's default loss scale, the first steps of many models overflow and skip the optimizer.
    "amp-fp16": {"fp16": {"enabled": True, "initial_scale_power": 0}},
    "bf16": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
}


def deepspeed_config(
    zero: Zero, knobs: Knobs, batch_size: int, num_passes: int | None = None
) -> dict[str, Any]:
    """Configuration of DeepSpeed, as a dictionary, for training with ZeRO.

    Args:
        zero: stage of ZeRO, and whether it offloads.
        knobs: the training options.
        batch_size: samples that one rank passes through the model at a time.
        num_passes: number of such passes that an optimizer step accumulates; None for as many as a trial
            runs.
    """
    sharding: dict[str, Any] = {"stage": zero.stage}
    if zero.offloads:
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if zero.offloads and zero.stage == 3:
        sharding["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch_size,
        "gradient_accumulation_steps": num_passes or knobs.num_passes(batch_size),
        "zero_optimization": sharding,
        "zero_allow_untested_optimizer": True,
        **{name: dict(section) for name, section in PRECISION_SECTIONS.get(knobs.precision, {}).items()},
    }
    if zero.offloads:  # lets optimizers of other libraries step on the CPU too
        config["zero_force_ds_cpu_optimizer"] = False
    if knobs.clip_grad_norm is not None:
        config["gradient_clipping"] = knobs.clip_grad_norm
    return config
