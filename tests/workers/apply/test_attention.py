"""The attention that a model of transformers is told to take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from autofit_workers.apply.attention import every_model_told, set_attention
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError
from autofit_workers.workload.libraries.transformers_releases import MODELS


class OfTransformers(nn.Module):
    """As far as it can be told which attention to take."""

    def __init__(self, *, obeys: bool = True, refuses: str | None = None) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="sdpa")
        self.obeys, self.refuses = obeys, refuses

    def set_attn_implementation(self, name: str) -> None:
        if name == self.refuses:
            raise ValueError("it has none of that. Ask for it elsewhere")
        if self.obeys:
            self.config._attn_implementation = name


def test_it_is_told_wherever_it_is_within_a_model() -> None:
    first, second = OfTransformers(), OfTransformers()
    set_attention(nn.Sequential(first, nn.ModuleList([second])), "eager")
    assert first.config._attn_implementation == second.config._attn_implementation == "eager"


def test_pytorchs_own_kernels_are_none_of_its_business() -> None:
    model = OfTransformers(refuses="flash")
    set_attention(model, "flash")
    set_attention(nn.Linear(1, 1), "default")
    assert model.config._attn_implementation == "sdpa"


def test_another_model_is_told_in_a_sentence() -> None:
    with pytest.raises(InapplicableError, match="eager is for models of transformers, which Linear is not"):
        set_attention(nn.Linear(1, 1), "eager")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            OfTransformers(refuses="eager"),
            r"cannot take attention eager \(it has none of that\)",
        ),
        (OfTransformers(obeys=False), "keeps its own attention, sdpa, when it is told eager"),
    ],
)
def test_one_that_does_not_take_it_is_refused(model: nn.Module, said: str) -> None:
    with pytest.raises(InapplicableError, match=said):
        set_attention(model, "eager")


def made_by_a_script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """How a model of transformers decides on its attention, as it is made."""

    class PreTrainedModel:
        def _check_and_adjust_attn_implementation(self, attn_implementation: str) -> str:
            return attn_implementation

    module = ModuleType(MODELS)
    vars(module)["PreTrainedModel"] = PreTrainedModel
    monkeypatch.setitem(sys.modules, MODELS, module)
    return lambda asked_for: PreTrainedModel()._check_and_adjust_attn_implementation(asked_for)


def test_every_model_of_a_script_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_by_a_script(monkeypatch)
    with every_model_told("default"):
        assert made("sdpa") == "sdpa"
    with every_model_told("eager"):
        assert made("sdpa") == "eager"


def test_a_script_that_makes_no_such_model_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made_by_a_script(monkeypatch)
    with (
        pytest.raises(InapplicableError, match="the script made none: leave it out"),
        every_model_told("eager"),
    ):
        pass


def test_flash_attention_that_is_not_installed_is_said_how_to_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    with pytest.raises(MissingLibraryError, match="not installed where trials run: pip install flash-attn"):
        set_attention(OfTransformers(), "fa2")


def test_flash_attention_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("flash_attn")
    library.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    model = OfTransformers()
    set_attention(model, "fa2")
    assert model.config._attn_implementation == "flash_attention_2"
