from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

import pytest

from autofit.hardware import context
from autofit.hardware.budget import make_budget
from autofit.hardware.context import Observation, context_interval, counted, observations
from autofit.hardware.gpus import Gpu, catalogue, catalogue_architectures
from autofit_workers.spec.vendors import Vendor
from tests.each import check_each

MIB = 1024**2


def line(seen: Iterable[Observation]) -> tuple[float, float]:
    """KiB per resident thread and MiB beside them, least squares over the medians of the cards."""
    cards = defaultdict(list)
    for one in seen:
        cards[one.card, one.num_threads / 1024].append(one.num_bytes / MIB)
    fit = statistics.linear_regression(
        [threads for _, threads in cards], [statistics.median(sizes) for sizes in cards.values()]
    )
    return fit.slope, fit.intercept


def test_the_line_is_the_one_that_the_evidence_gives() -> None:
    slope, intercept = line(counted(Vendor.NVIDIA))
    assert pytest.approx(slope, abs=0.001) == context._KIB_PER_THREAD
    assert pytest.approx(intercept, abs=0.1) == context._SAME_EVERYWHERE_MIB


def test_cards_are_foretold_by_the_others() -> None:
    inside = []
    for seen in counted(Vendor.NVIDIA):
        slope, intercept = line(other for other in counted(Vendor.NVIDIA) if other.card != seen.card)
        error = seen.num_bytes / MIB - intercept - slope * seen.num_threads / 1024
        inside.append(-context._BELOW_MIB <= error <= context._ABOVE_MIB)
    assert sum(inside) / len(inside) >= 0.95


def test_every_observation_names_where_it_can_be_found() -> None:
    found_by = r"[\w.-]+/[\w.-]+#\d+|[\d.]+ GiB in use, [\d.]+ allocated, [\d.]+ |free: \d+, total: \d+"
    sources = [seen.source for seen in observations(Vendor.NVIDIA)]
    assert all(re.match(found_by, source) for source in sources)
    assert len(set(sources)) >= len(sources) - 1  # one issue has two


def test_the_figures_of_a_message_leave_what_is_written() -> None:
    for seen in observations(Vendor.NVIDIA):
        figures = re.match(r"([\d.]+) GiB in use, ([\d.]+) allocated, ([\d.]+) (\w*)", seen.source)
        if figures is not None:
            in_use, allocated, unallocated = map(float, figures.groups()[:3])
            scale = {"MiB": 1, "KiB": 1 / 1024}.get(figures[4], 1024)
            left = 1024 * (in_use - allocated) - scale * unallocated
            assert left == pytest.approx(seen.num_bytes / MIB, abs=1), seen


def test_every_architecture_that_a_card_may_be_of_was_seen() -> None:
    assert set(catalogue_architectures()) == {seen.architecture for seen in counted(Vendor.NVIDIA)}


def test_every_card_has_an_interval_that_leaves_room() -> None:
    def leaves_room(gpu: Gpu) -> None:
        interval = context_interval(gpu.architecture, gpu.key)
        most = 900 if gpu.vendor is Vendor.NVIDIA else 1500
        assert 0 <= interval.low_bytes < interval.likely_bytes < interval.high_bytes < most * MIB
        assert make_budget(gpu.total_bytes, architecture=gpu.architecture, card=gpu.key).usable_bytes > 0

    check_each(catalogue().values(), leaves_room, name=lambda gpu: gpu.key)


def test_a_card_with_fewer_multiprocessors_holds_less() -> None:
    whole = context_interval("sm_80", "a100-40g")
    piece = context_interval("sm_80", "a100-40g-mig-1g.5gb")
    assert piece.likely_bytes < whole.likely_bytes / 3


def test_without_a_name_the_architecture_has_its_typical_card() -> None:
    assert context_interval("sm_86") == context_interval("sm_86", "rtx-3090")


def test_an_architecture_that_nobody_saw_is_wider_and_says_so() -> None:
    known, unknown = context_interval("sm_100"), context_interval("sm_999")
    assert unknown.high_bytes - unknown.low_bytes == 2 * (known.high_bytes - known.low_bytes)
    assert unknown.high_bytes > known.high_bytes
    assert "none seen on sm_999" in unknown.basis


def test_of_a_card_of_which_nothing_was_seen_the_interval_is_twice_as_wide() -> None:
    seen, unseen = context_interval("sm_75", "t4"), context_interval("sm_61", "gtx-1080-ti")
    assert unseen.high_bytes - unseen.likely_bytes == 2 * (seen.high_bytes - seen.likely_bytes)
    assert "none seen on sm_61" in unseen.basis


def test_loading_all_kernels_at_once_takes_more() -> None:
    for seen in counted(Vendor.NVIDIA, "eager"):
        interval = context_interval(seen.architecture, seen.card, loading="eager")
        assert interval.low_bytes < seen.num_bytes < interval.high_bytes
        assert interval.low_bytes > context_interval(seen.architecture, seen.card).likely_bytes


# ── AMD's cards ─────────────────────────────────────────────────────────────────────────────────


def in_mib(figure: str, unit: str) -> float:
    return float(figure) * {"KiB": 1 / 1024, "MiB": 1, "": 1024, "GiB": 1024}[unit]


def test_what_is_neither_free_nor_reserved_is_what_is_written() -> None:
    part = r"([\d.]+) ?(GiB|MiB|KiB|)"
    pattern = rf"{part}, {part} ?free, {part} ?allocated, {part} ?unallocated"
    for seen in observations(Vendor.AMD):
        figures = re.fullmatch(pattern, seen.source)
        if figures is None:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", seen.source)
            continue
        words = iter(figures.groups())
        total, *gone = map(in_mib, words, words)
        assert total - sum(gone) == pytest.approx(seen.num_bytes / MIB, abs=1), seen


def test_of_amd_s_cards_the_interval_is_what_was_seen_and_half_of_the_most_beyond() -> None:
    interval = context_interval("gfx942", "mi300x")
    sizes = sorted(seen.num_bytes for seen in observations(Vendor.AMD))
    assert (interval.low_bytes, interval.high_bytes) == (sizes[0], 1.5 * sizes[-1])
    assert sizes[3] <= interval.likely_bytes <= sizes[4]
    assert interval == context_interval("gfx90a", "mi210")
    assert "8 processes seen on AMD's cards; 1.5 times the most that any held" in interval.basis
    assert {seen.architecture for seen in observations(Vendor.AMD)} == {"gfx90a", "gfx942", "gfx950"}
