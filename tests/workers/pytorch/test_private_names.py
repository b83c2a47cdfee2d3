"""Private names of PyTorch: in one folder alone, each of them there, and each with its purpose."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import autofit_workers.pytorch
from autofit_workers.pytorch.operators import OpOverload, find_operator
from autofit_workers.pytorch.private_name import PrivateName

ROOT = Path(__file__).parents[3]
FOLDER = Path(autofit_workers.pytorch.__file__).parent
MODULES = sorted(each.name for each in pkgutil.iter_modules([str(FOLDER)]))


def private_names(code: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each private name of torch that a module imports or reaches by attributes.

    A variable of a function, or of the module, that is assigned a dotted name of torch stands for that name.
    Operators, below `torch.ops`, have names of their own.
    """
    tree = ast.parse(code)
    imported = dict(_imported(tree))
    for full in imported.values():
        if _is_held(full):
            yield 1, full
    yield from _reached(tree, {**imported, **dict(_assigned(tree.body, imported))})


def _reached(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = {**names, **dict(_assigned(node.body, names))}
    if isinstance(node, ast.Attribute):
        full = _dotted(node, names)
        if full is not None and _is_held(full):
            yield node.lineno, full
    for child in ast.iter_child_nodes(node):
        yield from _reached(child, names)


def _assigned(body: Sequence[ast.stmt], names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that the statements assign a dotted name of torch, with the name."""
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Attribute):
            full = _dotted(node.value, names)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and full is not None:
                    yield target.id, full


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    yield alias.name, alias.name
                    yield (alias.asname or "torch"), (alias.name if alias.asname else "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for alias in node.names:
                yield (alias.asname or alias.name), f"{node.module}.{alias.name}"


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return None if owner is None else f"{owner}.{node.attr}"
    return names.get(node.id) if isinstance(node, ast.Name) else None


def _is_held(full: str) -> bool:
    parts = full.split(".")
    return parts[:2] != ["torch", "ops"] and any(
        part.startswith("_") and not part.endswith("__") for part in parts
    )


def test_no_other_module_reaches_for_a_private_name() -> None:
    sources = [*(ROOT / "autofit").rglob("*.py"), *(ROOT / "workers" / "autofit_workers").rglob("*.py")]
    assert len(sources) > 500
    reaching = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources
        if FOLDER not in path.parents
        for line, name in private_names(path.read_text(encoding="utf-8"))
    ]
    assert reaching == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("from torch.utils import _pytree", "torch.utils._pytree"),
        ("import torch._dynamo", "torch._dynamo"),
        ("import torch\ntorch._C._current_autograd_node()", "torch._C"),
        ("import torch\nextension: Any = torch.cuda\nextension._lazy_init()", "torch.cuda._lazy_init"),
        ("from torch import optim as o\no.Adam._step", "torch.optim.Adam._step"),
    ],
)
def test_a_private_name_is_found(code: str, name: str) -> None:
    assert name in [found for _, found in private_names(code)]


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.Tensor.__init__",
        "import torch\ntorch.ops.aten._to_copy.default",
        "model._parameters",
        "from autofit_workers.pytorch.operators import OpOverload",
    ],
)
def test_what_is_no_private_name_of_pytorch_is_free(code: str) -> None:
    assert list(private_names(code)) == []


@pytest.mark.parametrize("module", MODULES)
def test_this_pytorch_has_every_name(module: str) -> None:
    loaded = importlib.import_module(f"autofit_workers.pytorch.{module}")
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, PrivateName):
                assert each.get() is not None, each


@pytest.mark.parametrize("module", [each for each in MODULES if each != "private_name"])
def test_every_name_has_its_purpose(module: str) -> None:
    """A comment stands at the name's import, or right above what is assigned to it or to names beside it."""
    lines = (FOLDER / f"{module}.py").read_text(encoding="utf-8").splitlines()
    docstring = lines[0]
    for number, line in enumerate(lines):
        is_assigned = line[:1].isalpha() and " = " in line
        if is_assigned:
            above = lines[number - 1]
            assert above.startswith("#") or "#" in line or " = " in above, f"{module}: {line}"
    assert docstring.startswith('"""')


def test_a_name_that_is_replaced_is_read_anew() -> None:
    class Owner:
        _answer = 1

    name = PrivateName(Owner, "_answer")
    assert name.get() == 1
    name.replace(2)
    assert (name.get(), Owner._answer) == (2, 2)


def test_operators_that_other_releases_lack_are_there_with_this_one():
    """Else a misspelt name would be an operator that is never called."""
    sources = (path.read_text(encoding="utf-8") for path in FOLDER.parent.rglob("*.py"))
    names = {name for source in sources for name in re.findall(r'find_operator\("([^"]+)"\)', source)}
    assert len(names) > 3
    for name in names:
        assert isinstance(find_operator(name), OpOverload), name
