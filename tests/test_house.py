"""What import-linter's contracts leave open: circles, full folders, and vendors outside of their tables."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from autofit_workers.spec.vendors import Vendor

ROOT = Path(__file__).parents[1]
PACKAGES = {"autofit": ROOT / "autofit", "autofit_workers": ROOT / "workers" / "autofit_workers"}
MOST_AT_THE_TOP = 8
MOST_IN_A_FOLDER = 20
OF_ONE_KIND = {"autofit_workers/spec/knobs"}  # a knob a file
TABLES_OF_VENDORS = {
    "autofit/hardware/context.py",
    "autofit/hardware/gpus.py",
    "autofit_workers/replay/vendors.py",
    "autofit_workers/spec/vendors.py",
}
WITHOUT_TORCH = ("autofit/", "autofit_workers/spec/", "autofit_workers/process/", "autofit_workers/replay/")
# The kind of device, and the probe that measures on it.
NAME_CUDA = {"autofit_workers/spec/devices.py", "autofit_workers/spec/protocol.py"}


def test_no_module_imports_itself_by_way_of_others_type_imports_included() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imported) > 500
    graphlib.TopologicalSorter(imported).prepare()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_few_files_at_its_top(package: str) -> None:
    files = [path.name for path in PACKAGES[package].glob("*.py")]
    assert len(files) <= MOST_AT_THE_TOP, files


def test_no_folder_has_more_files_than_one_looks_through() -> None:
    sizes = Counter(
        f"{package}/{path.parent.relative_to(folder)}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
    )
    crowded = {folder: size for folder, size in sizes.items() if size > MOST_IN_A_FOLDER}
    assert crowded.keys() == OF_ONE_KIND, crowded


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            yield f"{package}/{path.relative_to(folder)}", ast.parse(path.read_text(encoding="utf-8"))


def named_vendor(node: ast.AST | None) -> str | None:
    """Member that an expression `Vendor.MEMBER` names."""
    match node:
        case ast.Attribute(value=ast.Name(id="Vendor"), attr=member):
            return member
    return None


def asks_for_a_vendor(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and any(
        isinstance(side, ast.Attribute) and side.attr == "vendor" for side in (node.left, *node.comparators)
    )


def test_vendors_are_named_in_tables_alone_that_have_a_row_for_each() -> None:
    tables, others = set(), []
    for name, module in modules():
        nodes, rows = [*ast.walk(module)], set()
        for table in (node for node in nodes if isinstance(node, ast.Dict)):
            keys = [key for key in table.keys if named_vendor(key) is not None]
            if keys:
                assert [named_vendor(key) for key in keys] == list(Vendor), (name, table.lineno)
                tables.add(name)
                rows.update(map(id, keys))
        others += [
            f"{name}:{node.lineno}"
            for node in nodes
            if asks_for_a_vendor(node) or (named_vendor(node) is not None and id(node) not in rows)
        ]
    assert not others, "ask the vendor's row (Vendor.facts), or add a row to a table"
    assert tables == TABLES_OF_VENDORS


def test_a_kind_of_device_has_its_name_from_one_place() -> None:
    """Where torch is at hand, `"cuda"` is what its own functions take, on ROCm too."""
    named = {
        name
        for name, module in modules()
        if name.startswith(WITHOUT_TORCH)
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and node.value == "cuda"
    }
    assert named == NAME_CUDA
