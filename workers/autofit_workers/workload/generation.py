"""Text generation by a transformers model's own `generate`, in place of a training step.

Generation stops after a given number of tokens, and never at an end token, because which tokens a model
generates is not known before it runs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.setup import GENERATE, Setup
from autofit_workers.workload.sizes import sample_size
from autofit_workers.workload.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

_OWN = ("new_tokens", "cache", "num_beams")  # knobs without effect in other modes


@dataclasses.dataclass(frozen=True)
class Generate:
    """Function that generates tokens from a batch of prompts; takes the place of a workload's loss.

    Args:
        knobs: knob setting, of which the number of new tokens, the KV cache and the number of beams are used.
        name: name of the workload, for messages.
    """

    knobs: Knobs
    name: str

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Generates tokens; returns the prompts with the tokens after them."""
        if not getattr(model, "can_generate", lambda: False)():
            raise InapplicableError(
                f"{self.name} cannot generate: --mode generate is for language models of transformers that "
                "have a head for the next token, such as hf:gpt2; leave it out, or ask for --mode infer"
            )
        kept = {name: value for name, value in batch.items() if name != "labels"}
        new_tokens = self.knobs.new_tokens
        more: dict[str, Any] = {}
        if self.knobs.cache != KNOBS["cache"].default:
            more["cache_implementation"] = self.knobs.cache
        generate: Any = model.generate
        try:
            made: Tensor = generate(
                **kept,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                num_beams=self.knobs.num_beams,
                pad_token_id=0,
                disable_compile=True,  # transformers would compile the passes of a static cache on a GPU
                **more,
            )
        except ImportError as error:
            raise InapplicableError(
                f"--cache {self.knobs.cache} needs a library that is not installed ({error}): install it, or "
                "choose another --cache"
            ) from error
        except ValueError as error:
            if not more:
                raise
            # A model with sliding windows, for example, or with an encoder, whose cache is of another kind.
            raise InapplicableError(
                f"{self.name} cannot generate with --cache {self.knobs.cache}: {error}; choose another "
                "kind, or leave --cache out"
            ) from error
        return made


def generating(workload: Workload, knobs: Knobs, setup: Setup) -> Workload:
    """Workload that generates text in place of its loss in mode `generate`; unchanged in other modes.

    Raises:
        InapplicableError: knobs of generation are set in another mode, the workload has its own step, the
            number of tokens is missing, or prompt and new tokens are more than the model has positions for.
    """
    if workload.mode != GENERATE:
        for name in _OWN:
            if getattr(knobs, name) != KNOBS[name].default:
                raise InapplicableError(
                    f"--{KNOBS[name].option} is for generation: add --mode generate, or leave it out"
                )
        return workload
    name = workload.name or "the workload"
    if workload.step is not None:
        raise InapplicableError(
            f"{name} has its own step, which autofit runs as it is: leave out --mode generate"
        )
    if knobs.new_tokens is None:
        raise InapplicableError("--mode generate needs the number of tokens: add --new-tokens, such as 256")
    sample = sample_size(workload, knobs.seq_len)
    prompt, longest = None if sample is None else sample.size, workload.max_size
    if prompt and longest and prompt + knobs.new_tokens > longest and not setup.allows_long:
        raise InapplicableError(
            f"a prompt of {prompt} and {knobs.new_tokens} new tokens are beyond the {longest} positions of "
            f"{name}: ask for fewer with --prompt-len or --new-tokens, or add --allow-long"
        )
    return dataclasses.replace(workload, loss=Generate(knobs, name))
