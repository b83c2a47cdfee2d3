"""What of a run is seen, the step at which what grows fills the card, and how that is said."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.answers.words.run import growth_in_words, seen_part
from autofit.predict.whole_run import LineGrowth, RunGrowth, SeenPart, fills

GIB, MIB = 1024**3, 1024**2
LINE = LineGrowth(line="/home/me/train.py:12:main", bytes_per_step=18 * MIB)
GROWTH = RunGrowth(lines=(LINE,), peak_bytes_per_step=16 * MIB, seen_steps=10)


def test_the_first_step_that_needs_more_than_there_is_fills_the_card():
    # 1 GiB after 10 steps, 16 MiB more with each: 64 steps later there are exactly 2 GiB.
    assert GROWTH.full_step(GIB, 2 * GIB) == 75
    assert GROWTH.full_step(GIB, 2 * GIB - 1) == 74
    assert GROWTH.full_step(3 * GIB, 2 * GIB) == 11


@pytest.mark.parametrize(("run_steps", "is_full"), [(None, True), (75, True), (74, False)])
def test_a_run_that_ends_before_fills_nothing(run_steps, is_full):
    growth = dataclasses.replace(GROWTH, run_steps=run_steps)
    assert fills(growth.within(GIB, 2 * GIB)) is is_full


def test_nothing_fills_a_card_where_nothing_grows():
    assert RunGrowth().within(GIB, 2 * GIB) == ()
    assert RunGrowth().full_step(GIB, 2 * GIB) is None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (SeenPart(steps=3, phases=("training",)), ()),
        (
            SeenPart(steps=3, run_steps=400, phases=("training",), unseen_phases=("evaluation",)),
            ("3 steps were seen of 400; an evaluation was not reached",),
        ),
        (
            SeenPart(steps=3, lengths=(311, 87, 902), phases=("training", "evaluation", "checkpoint")),
            ("3 steps were seen, of lengths 311, 87, 902, with an evaluation and a checkpoint",),
        ),
        (
            SeenPart(steps=8, run_steps=9, lengths=(5, 3, 9, 4, 7, 8, 6, 2), phases=("training",)),
            ("8 steps were seen of 9, of lengths 2 to 9",),
        ),
        (SeenPart(steps=1, run_steps=1, phases=("training",)), ("all of the run was seen, in 1 step",)),
        (SeenPart(steps=40, run_steps=40, phases=("training",)), ("all of the run was seen, in 40 steps",)),
        (
            SeenPart(steps=3, phases=("training",), unseen_phases=("evaluation", "checkpoint")),
            ("3 steps were seen; an evaluation and a checkpoint were not reached",),
        ),
    ],
)
def test_what_was_seen_is_one_sentence(seen, said):
    assert seen_part(seen) == said


def test_what_grows_is_said_with_its_line_and_the_step_at_which_the_card_is_full():
    (line,) = GROWTH.within(GIB, 2 * GIB)
    seen = SeenPart(steps=10, run_steps=400)
    assert growth_in_words([line], seen) == (
        "18.00 MiB more is alive after each step, from train.py:12: the card is full at step 75 of 400; "
        "keep values of steps with .item() or .detach().cpu()"
    )


def test_of_a_run_that_ends_before_the_card_is_full_it_is_said_how_much_more_it_ends_with():
    seen = SeenPart(steps=10, run_steps=40)
    assert growth_in_words([LINE, LINE], seen) == (
        "36.00 MiB more is alive after each step, from train.py:12 and 1 more line: the run ends at step 40, "
        "with 1.05 GiB more than was seen; keep values of steps with .item() or .detach().cpu()"
    )
