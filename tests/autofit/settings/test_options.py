"""Options of `autofit tune` as the fields of its settings declare them."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

from autofit.settings import values
from autofit.settings.options import OPTIONS, Topic
from autofit.settings.options.option import Option, options_of, parts
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.setup import Setup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    name: str = Option(values.text, "A name.", topic=Topic.MODEL).required()
    wait_seconds: float = Option(
        values.seconds, "How long to wait.", name="wait", topic=Topic.TRIALS
    ).with_default(60.0)
    share: Decimal = Option(values.margin, "A share.", topic=Topic.CARD).with_default(Decimal("0.03"))
    size: int = Option(values.size_or_zero, "A size.", topic=Topic.CARD).with_default(0)
    card: str | None = Option(values.text, "A card.", topic=Topic.CARD, default="the local one").with_default(
        None
    )
    setup: Setup = parts(Setup, {"batch_kind": Option(values.text, "A kind.", topic=Topic.SETTINGS)})
    derived: int = 1


def test_a_field_and_its_option_are_one_declaration() -> None:
    found = [(option.name, option.field, option.help_text) for option in options_of(Example)]
    assert found == [
        ("name", "name", "A name."),
        ("wait", "wait_seconds", "How long to wait.  [default: 60]"),
        ("share", "share", "A share.  [default: 3%]"),
        ("size", "size", "A size."),
        ("card", "card", "A card.  [default: the local one]"),
        ("batch-kind", "setup.batch_kind", "A kind."),
    ]
    example = Example(name="a")
    assert (example.wait_seconds, example.size, example.card, example.setup) == (60.0, 0, None, Setup())


def test_only_what_follows_from_other_options_is_a_setting_without_an_option() -> None:
    declared = {option.field.partition(".")[0] for option in OPTIONS.values()}
    fields = {field.name for field in dataclasses.fields(TuneSettings)}
    assert fields - declared == {"given_knobs", "parallels"}
