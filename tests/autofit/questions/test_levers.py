"""Levers: every single change that has to do with memory, the gentlest first."""

from __future__ import annotations

import dataclasses
from typing import Any

from autofit.questions.levers import Effect, Lever, gentleness, levers
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.knobs import Knobs


def lever(how: str, knobs: Knobs = Knobs()) -> Lever:  # noqa: B008 - frozen
    (found,) = (each for each in levers(knobs) if each.how == how)
    return found


def test_the_levers_are_all_that_may_save_memory() -> None:
    changed = {(each.name, each.value) for each in levers(Knobs(precision="bf16"))}
    assert {value for name, value in changed if name == "precision"} == {"amp-fp16", "amp-bf16"}
    assert {name for name, _ in changed} >= {
        "precision", "memory_format", "optimizer_impl", "set_to_none", "conv_algo", "allocator",
    }  # fmt: skip
    algos = {value for name, value in changed if name == "conv_algo"}
    assert algos == set(conv.applicable("cuda")) - {"cudnn"}


def test_what_leaves_a_step_as_it_is_comes_before_what_takes_time_and_that_before_what_rounds() -> None:
    by_option = {each.how: each.effect for each in levers(Knobs())}
    assert by_option["--optimizer-impl fused"] is Effect.NONE
    assert by_option["--allocator expandable_segments"] is Effect.NONE
    assert by_option["--optimizer-impl loop"] is Effect.SLOWER
    assert by_option["--optimizer-in-backward"] is Effect.SLOWER
    assert by_option["--checkpointing blocks"] is Effect.SLOWER
    assert by_option["--conv-algo cudnn-deterministic"] is Effect.SLOWER
    assert by_option["--precision amp-bf16"] is Effect.ROUNDS
    assert by_option["--precision bf16"] is Effect.DRASTIC
    assert by_option["--conv-algo native"] is Effect.DRASTIC
    ranks = [each.effect.rank for each in levers(Knobs())]
    assert ranks == sorted(ranks)


def test_an_effect_is_that_of_the_change_and_not_of_the_value() -> None:
    checkpointed = Knobs(checkpointing="blocks", optimizer_impl="loop")
    assert lever("--checkpointing none", checkpointed).effect is Effect.NONE
    assert lever("--checkpointing every:2", checkpointed).effect is Effect.NONE
    assert lever("--optimizer-impl foreach", checkpointed).effect is Effect.NONE


def test_the_harshest_change_decides_and_then_the_number() -> None:
    fused, segments = lever("--optimizer-impl fused"), lever("--allocator expandable_segments")
    blocks, autocast = lever("--checkpointing blocks"), lever("--precision amp-bf16")
    in_order = [(fused,), (fused, segments), (blocks,), (fused, blocks), (autocast,), (blocks, autocast)]
    places = [gentleness(changes) for changes in in_order]
    assert places == sorted(set(places))


def test_what_cannot_matter_to_a_step_says_why(make_trace: Any) -> None:
    native, fused = lever("--conv-algo native"), lever("--optimizer-impl fused")
    training, convolving = make_trace(4), make_trace(4, num_channels=64)
    inference = dataclasses.replace(convolving, mode="infer")
    assert native.why_pointless(training) == "the step has no convolution"
    assert "neither an optimizer" in fused.why_pointless(inference)
    assert not native.why_pointless(inference)
    assert not fused.why_pointless(training)


def test_a_loss_in_chunks_is_for_logits_of_more_rows_than_samples(make_trace: Any) -> None:
    chunked = lever("--loss chunked:8")
    of_tokens = make_trace(4, operator="aten._log_softmax")
    assert not chunked.why_pointless(of_tokens)
    assert "no cross entropy" in chunked.why_pointless(make_trace(4))
    shapes = [dataclasses.replace(each, shape=(4, 1000)) for each in of_tokens.allocations]
    assert "no cross entropy" in chunked.why_pointless(
        dataclasses.replace(of_tokens, allocations=tuple(shapes))
    )


def test_states_are_made_smaller_of_the_same_optimizer_alone(make_trace: Any) -> None:
    eight_bit = lever("--optimizer adamw8bit")
    assert eight_bit.effect is Effect.ROUNDS
    steps = {name: dataclasses.replace(make_trace(4), optimizer=name) for name in ("adam", "adamw", "custom")}
    assert not any(eight_bit.why_pointless(steps[name]) for name in ("adam", "adamw"))
    assert "not by adam or adamw" in eight_bit.why_pointless(make_trace(4))
    assert "not by adam or adamw" in eight_bit.why_pointless(steps["custom"])


def test_what_holds_more_than_any_other_value_saves_nothing() -> None:
    assert {each.how for each in levers(Knobs()) if not each.may_save} == {"--optimizer-impl foreach"}
