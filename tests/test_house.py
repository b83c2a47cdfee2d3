"""What import-linter's contracts leave open: circles of imports, and folders with too many files."""

from __future__ import annotations

import graphlib
from collections import Counter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"autofit": ROOT / "autofit", "autofit_workers": ROOT / "workers" / "autofit_workers"}
MOST_AT_THE_TOP = 8
MOST_IN_A_FOLDER = 20
OF_ONE_KIND = {"autofit_workers/spec/knobs"}  # a knob a file


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
