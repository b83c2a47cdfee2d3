"""Reading vidur's tables of collectives."""

from __future__ import annotations

from pathlib import Path

from autofit_workers.replay.time.collectives import Exchange
from tests.bench.time import collectives

HEAD = "time_stats.{0}.median,num_workers,size,devices_per_node\n"


def table(folder: Path, name: str, exchange: str, *lines: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    text = HEAD.format(exchange) + "".join(f"{line}\n" for line in lines)
    (folder / name / f"{exchange}.csv").write_text(text, encoding="utf-8")


def test_rows_have_the_links_of_their_ranks(tmp_path: Path) -> None:
    table(tmp_path, "a100_pairwise_nvlink", "all_reduce", "0.5,2,10000000,2", "0.9,4,10000000,4")
    table(tmp_path, "a100_dgx", "all_reduce", "7.0,16,1000,8")
    between, joined, by_pcie = collectives.read(tmp_path)
    assert between.network is None
    assert joined.network is not None
    assert by_pcie.network is not None
    assert (joined.network.name, by_pcie.network.name) == ("nvlink3", "pcie")
    assert (joined.exchange, joined.seconds) == (Exchange.ALL_REDUCE, 0.0005)
    assert by_pcie.predicted_seconds > joined.predicted_seconds


def test_a_copied_table_and_others_are_left_out(tmp_path: Path) -> None:
    table(tmp_path, "h100_pairwise_nvlink", "send_recv", "0.5,2,1000,2")
    table(tmp_path, "a100_dgx", "attention", "0.5,2,1000,2")
    assert collectives.read(tmp_path) == []
