"""Our times of matrix products beside NVIDIA's: `python tests/bench/matmul_heuristics.py`.

NVIDIA's `nvidia-matmul-heuristics` (`pip install nvidia-matmul-heuristics`; no GPU, its own licence) says how
long the kernel that it names takes. Both are held against the products of vidur's table (float16) and of
NeuSight's (float32, `torch.nn.Linear`): as they are, and with one constant for each card, the median of
measured / predicted. Each card and precision has a process of its own: two interfaces in one crashed. Where
the library is not installed, ours are printed alone, and the bench fails.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autofit_workers.spec.work import Work  # noqa: E402
from tests.bench.step_times import EVENT_SECONDS, costs_of, device_seconds  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402
from tests.bench.time import neusight_kernels, vidur  # noqa: E402

_ROWS_OF_A_CARD = 400
_LIBRARY = "nvMatmulHeuristics"
# Cards as the tables and as the library name them, and the library's word for the data types of a product.
_CARDS = {
    ("vidur", "a100"): ("A100_SXM_80GB", "HSH"),
    ("vidur", "h100"): ("H100_SXM", "HSH"),
    ("vidur", "a40"): ("A40_PCIE", "HSH"),
    ("neusight", "NVIDIA A100 80GB PCIe"): ("A100_PCIE_80GB", "SSS"),
}
_KEPT: list[object] = []  # interfaces crash where they are dropped, so they live as long as their process
Shape = tuple[int, int, int]  # rows, columns, length of the sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product that was timed."""

    work: Work
    seconds: float
    beside: float = 0.0

    @property
    def shape(self) -> Shape:
        left, right = self.work.inputs[-2:]
        return left.shape[0], right.shape[1], left.shape[1]


@functools.cache
def _operators_of_vidur() -> list[vidur.OperatorRow]:
    return vidur.read(DEFAULT_TABLES)


def products(table: str, card: str, num_rows: int) -> Iterator[Product]:
    """About so many products of one card, evenly over their times."""
    if table == "vidur":
        found = [
            Product(work=row.works[0], seconds=row.seconds)
            for row in _operators_of_vidur()
            if row.card == card and row.operator.endswith("_proj")
        ]
    else:
        rows = neusight_kernels.of_device(neusight_kernels.read(DEFAULT_TABLES))
        found = [
            Product(work=row.work, seconds=row.seconds, beside=EVENT_SECONDS)
            for row in rows
            if row.card == card and row.operator == "linear" and row.split == "test"
        ]
    found.sort(key=lambda product: product.seconds)
    yield from found[:: max(1, len(found) // num_rows)]


def library_seconds(gpu: str, precision: str, shapes: Sequence[Shape]) -> list[float]:
    """What NVIDIA's library says, in a process of its own.

    Raises:
        BrokenProcessPool: it crashed.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # says so where its process dies
        return pool.submit(_ask, gpu, precision, shapes).result()


def _ask(gpu: str, precision: str, shapes: Sequence[Shape]) -> list[float]:
    import nvMatmulHeuristics as library  # noqa: N813 - a module, not a class

    interface = library.NvMatmulHeuristicsInterface(
        library.NvMatmulHeuristicsTarget.GENERIC,
        precision=precision,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    _KEPT.append(interface)
    descriptor = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(descriptor, library.NvMatmulHeuristicsNvidiaGpu[gpu])
    layout = library.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
    interface.loadInternalDiscoverySet(layout, descriptor)
    return [float(interface.get_with_mnk(*shape, layout, 1, descriptor)[0]["runtime"]) for shape in shapes]


def errors(name: str, predicted: Sequence[float], measured: Sequence[float]) -> str:
    """A line: as it is, and with one constant."""
    constant = statistics.median(m / p for p, m in zip(predicted, measured, strict=True))
    shown = []
    for factor in (1.0, constant):
        each = sorted(abs(factor * p / m - 1) for p, m in zip(predicted, measured, strict=True))
        shown.append(f"{statistics.median(each):6.1%} {each[int(0.9 * (len(each) - 1))]:6.1%}")
    return f"  {name:10} as it is {shown[0]}   with one constant ({constant:.2f}) {shown[1]}"


def main() -> int:
    """Prints two lines for each card; 1 where NVIDIA's library is not installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = sorted({table for table, _ in _CARDS})
    parser.add_argument("--table", action="append", choices=tables, help="repeatable; default: both")
    parser.add_argument(
        "--rows", type=int, default=_ROWS_OF_A_CARD, help=f"about so many of each card [{_ROWS_OF_A_CARD}]"
    )
    options = parser.parse_args()
    is_installed = importlib.util.find_spec(_LIBRARY) is not None
    for (table, card), (gpu, precision) in _CARDS.items():
        if table not in (options.table or tables):
            continue
        rows = list(products(table, card, options.rows))
        measured = [row.seconds - row.beside for row in rows]
        print(f"{table} {card}: {len(rows)} products, median and 90th percentile of the error")
        print(errors("ours", [device_seconds([row.work], costs_of(card)) for row in rows], measured))
        if is_installed:
            theirs = library_seconds(gpu, precision, [row.shape for row in rows])
            print(errors("NVIDIA's", theirs, measured))
    if not is_installed:
        print("NVIDIA's library is not here: pip install nvidia-matmul-heuristics", file=sys.stderr)
    return int(not is_installed)


if __name__ == "__main__":
    sys.exit(main())
