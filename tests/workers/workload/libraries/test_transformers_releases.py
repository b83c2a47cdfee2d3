"""Interfaces of older releases of transformers, as stand-ins that offer what those releases do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from autofit_workers.apply import base
from autofit_workers.apply.attention import set_attention
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError, UnsupportedError
from autofit_workers.workload.libraries import transformers_releases as releases


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Puts a module in place of one of transformers."""

    def install(name: str, **content: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return install


class Model448(nn.Module):
    """Model that decides on its attention as those of transformers 4.48: once, before it is built."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = self._autoset_attn_implementation(config)

    @classmethod
    def _autoset_attn_implementation(cls, config: Any, use_flash_attention_2: bool = False) -> Any:
        config._attn_implementation = config._attn_implementation or "sdpa"
        return config


Model448.__module__ = releases.MODELS


class Configuration448:
    """Configuration that remembers which attention it was given."""

    def __init__(self, attention: Any = None) -> None:
        self._attn_implementation = attention

    @property
    def _attn_implementation_internal(self) -> Any:
        return self._attn_implementation


@pytest.fixture
def model_448(installed: Callable[..., ModuleType]) -> type[Model448]:
    class Fresh(Model448):  # the fixture's own, as it is overridden
        _autoset_attn_implementation = classmethod(Model448._autoset_attn_implementation.__func__)

    installed(releases.MODELS, PreTrainedModel=Fresh)
    return Fresh


@pytest.mark.parametrize("asked_for", [None, "sdpa"])
@pytest.mark.parametrize("listen", [releases.when_attention_is_decided, releases.when_attention_is_built_in])
def test_a_model_of_448_is_built_with_the_attention_that_is_chosen(model_448, listen, asked_for):
    heard: list[Any] = []
    listen(lambda asked_for: heard.append(asked_for) or "eager")
    assert model_448(Configuration448(asked_for)).config._attn_implementation == "eager"
    assert heard == [asked_for]


def test_a_choice_for_each_part_is_left_to_the_parts(model_448):
    releases.when_attention_is_decided(lambda _asked_for: "eager")
    each = {"text_config": "sdpa"}
    assert model_448(Configuration448(each)).config._attn_implementation == each


def test_models_that_are_told_later_are_built_as_they_are(installed):
    class Model:
        def _check_and_adjust_attn_implementation(self, name: str) -> str:
            return name

        def set_attn_implementation(self, name: str) -> None: ...

    installed(releases.MODELS, PreTrainedModel=Model)
    releases.when_attention_is_built_in(lambda _asked_for: "eager")
    assert Model()._check_and_adjust_attn_implementation("sdpa") == "sdpa"


def test_attention_of_a_model_of_448_is_only_what_it_was_built_with():
    set_attention(Model448(Configuration448("eager")), "eager")
    with pytest.raises(InapplicableError, match="keeps its own attention, sdpa, when it is told eager"):
        set_attention(Model448(Configuration448()), "eager")


def test_configurations_were_spelled_otherwise_before_5():
    old, new = object(), object()
    assert releases.configuration_class(SimpleNamespace(PretrainedConfig=old)) is old
    assert releases.configuration_class(SimpleNamespace(PretrainedConfig=old, PreTrainedConfig=new)) is new


@pytest.mark.parametrize(
    ("config", "decoder", "expected"),
    [
        (SimpleNamespace(vocab_size=1), False, 1),
        (SimpleNamespace(text_config=SimpleNamespace(vocab_size=2)), False, 2),
        (SimpleNamespace(text_encoder=SimpleNamespace(vocab_size=3), vocab_size=1), False, 3),
        (SimpleNamespace(text_encoder=SimpleNamespace(vocab_size=3), vocab_size=1), True, 1),
        (SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=4)), False, 4),
        (SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(vocab_size=5 * decoder)), True, 5),
    ],
)
def test_the_part_with_text_is_found_without_the_method_of_445(config, decoder, expected):
    assert releases.text_config_of(config, decoder=decoder).vocab_size == expected


def test_device_maps_are_noted_where_456_makes_them(installed):
    module = installed(releases.MODELS, _get_device_map=lambda _model, words: words, PreTrainedModel=object)
    noted: list[str] = []
    releases.when_device_map_is_made(noted.append)
    assert module._get_device_map(None, "auto") == "auto"
    assert module._get_device_map(None, {"": 0}) == {"": 0}
    assert noted == ["auto"]


def test_device_maps_are_noted_where_448_loads_models(installed):
    class Model:
        @classmethod
        def from_pretrained(cls, name: str, *, device_map: Any = None) -> Any:
            return cls, name, device_map

    installed("transformers.integrations.accelerate")
    installed(releases.MODELS, PreTrainedModel=Model)
    noted: list[str] = []
    releases.when_device_map_is_made(noted.append)
    assert Model.from_pretrained("a", device_map="auto") == (Model, "a", "auto")
    assert Model.from_pretrained("a", device_map="cuda") == (Model, "a", "cuda")
    assert noted == ["auto"]


def test_layers_that_stay_unquantized_are_asked_of_the_module_of_4(installed):
    installed("transformers.quantizers.base")
    installed("transformers.integrations.bitsandbytes", get_keys_to_not_convert=lambda _model: ("lm_head",))
    assert releases.layers_kept_from_quantization(Model448(Configuration448())) == ["lm_head"]
    assert releases.layers_kept_from_quantization(nn.Linear(1, 1)) == []


def test_what_an_older_release_cannot_is_said_with_the_way_to_it(installed):
    installed("transformers", __version__="4.48.3")
    installed("transformers.integrations.accelerate").__spec__ = SimpleNamespace()
    model = Model448(Configuration448())
    with pytest.raises(MissingLibraryError, match=r"transformers 4\.48\.3 does not have: pip install"):
        releases.require_newer(model, "_resolve_parallel_plans", "--parallel tp:N")
    with pytest.raises(MissingLibraryError, match=r"--parallel device-map of a model .* pip install"):
        releases.device_maps_module("--parallel device-map")
    releases.require_newer(nn.Linear(1, 1), "_resolve_parallel_plans", "--parallel tp:N")


def test_flash_attention_is_looked_for_again_where_that_is_possible(installed, monkeypatch):
    monkeypatch.delitem(sys.modules, releases._FLASH, raising=False)
    releases.look_for_flash_attention_again()  # before transformers is imported there is nothing to do
    module = installed(releases._FLASH, _loaded_implementation="none")
    releases.look_for_flash_attention_again()
    assert module._loaded_implementation is None
    installed("transformers", __version__="4.48.3")
    installed(releases._FLASH)
    with pytest.raises(UnsupportedError, match=r"not predicted with transformers 4\.48\.3: pip install"):
        releases.look_for_flash_attention_again()


def test_bitsandbytes_that_does_not_describe_its_operators_is_said(installed, monkeypatch):
    installed("bitsandbytes", __version__="0.45.5", __path__=[])
    monkeypatch.delitem(sys.modules, "bitsandbytes._ops", raising=False)
    with pytest.raises(MissingLibraryError, match=r"base nf4 needs bitsandbytes 0\.46 .*, and 0\.45\.5"):
        base.library("nf4")
