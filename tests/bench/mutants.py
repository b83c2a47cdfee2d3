"""How many small faults tests find: `python tests/bench/mutants.py [FILE …] [--seed 48] [--number 30]`.

Draws faults (mutants) of each file, runs the file's tests on each, and prints which were killed, that is,
found, and which lived. Kinds of faults take turns in the draw, since else most would be changed strings. Each
mutant has a forked process in which its module is imported from the changed source; the files on disk stay as
they are, and children that the tests start run them unchanged. Not mutated: annotations, decorators,
docstrings, assertions for type checkers and the `strict` of `zip`.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import importlib.abc
import importlib.util
import itertools
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120  # a mutant that takes longer is killed, as one that never ends would be

# The files, each with the tests that cover it, the fastest first.
TESTS = {
    "autofit/report/html/figures.py": (
        "tests/autofit/report/test_figures.py",
        "tests/autofit/report/test_html.py",
    ),
    "workers/autofit_workers/replay/time/kernels.py": (
        "tests/workers/replay/time/test_kernels.py",
        "tests/workers/replay/time/test_costs.py",
        "tests/workers/replay/time/test_step.py",
    ),
    "workers/autofit_workers/replay/allocator/pools.py": ("tests/workers/replay/allocator",),
    "autofit/hardware/budget.py": (
        "tests/autofit/hardware/test_budget.py",
        "tests/autofit/hardware/test_context.py",
        "tests/autofit/hardware/test_nccl.py",
    ),
    "autofit/search/boundary.py": (
        "tests/autofit/search/test_boundary.py",
        "tests/autofit/search/test_curves.py",
    ),
}

# Mutants that do what the file does, by file, function, line and change, each with the reason.
EQUIVALENT = {
    (
        "boundary.py", "_last_within", "return first - 1", "1 → 2"
    ): "both callers take any rank before the first for none",
    (
        "figures.py",
        "lever_bars",
        "sizes = [result.saved_bytes if result.saved_bytes * sign > 0 else 0 for result in results]",
        "result.saved_bytes * sign → result.saved_bytes / sign",
    ): "the sign is 1 or -1",
    (
        "boundary.py", "Boundary.observe", "self._in_flight.discard(rank)",
        "self._in_flight.discard(rank) → (removed)",
    ): "a known size lies outside the open bracket, and only sizes within it are asked for",
    (
        "pools.py", "BlockPools._release_oversize", "return False", "False → True"
    ): "the second attempt to grow fails like the first",
    (
        "pools.py", "BlockPools.__init__", "self._num_large_searches = 0", "0 → -1"
    ): "ages are differences of it",
    (
        "pools.py",
        "BlockPools.pool",
        "min_remainder_bytes=BLOCK_BYTES if splits_all else SMALL_REQUEST_BYTES + 1,",
        "1 → 2",
    ): "sizes are multiples of 512 B",
    (
        "pools.py", "BlockPools._release_oversize", "return False", "return False → return None"
    ): "it is only asked whether it is true",
}  # fmt: skip

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
_EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """Changed source of a file.

    Attributes:
        kind: of the change, such as `comparison`.
        place: the function that it is in; empty at the module's level.
        node, choice: which node is changed, and which of its changes it is.
    """

    kind: str
    line: int
    place: str
    change: str
    node: int
    choice: int


# ── changes ─────────────────────────────────────────────────────────────────────────────────────


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Kinds of changes of a node, each with what takes its place; None removes a statement."""
    match node:
        case ast.Compare(ops=[first, *others]):
            changed = _copy(node)
            changed.ops = [_COMPARED[type(first)](), *others]
            yield "comparison", changed
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _COMPUTED:
            changed = _copy(node)
            changed.op = _COMPUTED[type(node.op)]()
            yield "arithmetic", changed
        case ast.BinOp(op=ast.BitOr(), left=left):
            yield "arithmetic", left
        case ast.BoolOp(op=op, values=values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", operand
        case ast.Constant(value=bool(value)):
            yield "boolean", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "number", ast.Constant(value + 1)
            yield "number", ast.Constant(value - 1)
        case ast.Constant(value=str(value)):
            yield "string", ast.Constant(f"{value}X")
        case ast.Call(func=ast.Name(id=name)) if name in _EXCHANGED:
            changed = _copy(node)
            changed.func = ast.Name(_EXCHANGED[name], ast.Load())
            yield "exchanged call", changed
        case ast.Return(value=value) if value is not None and ast.unparse(value) != "None":
            yield "return value", ast.Return(ast.Constant(None))
    yield from _conditions(node)
    yield from _arguments(node)
    if _is_removable(node):
        yield "statement", None


def _conditions(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        changed = _copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition", changed


def _arguments(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if not isinstance(node, ast.Call):
        return
    for number in range(len(node.args)):
        changed = _copy(node)
        del changed.args[number]
        yield "argument", changed
    for number, keyword in enumerate(node.keywords):
        if keyword.arg != "strict":
            changed = _copy(node)
            del changed.keywords[number]
            yield "argument", changed


def _is_removable(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Assign(targets=[target]):
            return isinstance(target, ast.Attribute | ast.Subscript)
    return isinstance(
        node,
        ast.Expr | ast.Raise | ast.Continue | ast.Break | ast.AugAssign | ast.Delete | ast.For | ast.While,
    )


def _copy(node: Any) -> Any:
    """Shallow copy, with lists of its own."""
    fields = {
        name: list(value) if isinstance(value, list) else value for name, value in ast.iter_fields(node)
    }
    return ast.copy_location(type(node)(**fields), node)


def _nodes(tree: ast.AST, place: str = "") -> Iterator[tuple[ast.AST, str, Callable[[ast.AST], None]]]:
    """Nodes that may be changed, each with the function it is in and a setter of its place in the tree."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "format_spec") or (
            isinstance(tree, ast.keyword) and tree.arg == "strict"
        ):
            continue
        is_list = isinstance(value, list)
        for number, node in enumerate(value if is_list else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue

            def put(new: ast.AST, name: str = name, number: int = number, *, is_list: bool = is_list) -> None:
                if is_list:
                    getattr(tree, name)[number] = new
                else:
                    setattr(tree, name, new)

            yield node, place, put
            inner = isinstance(node, ast.FunctionDef | ast.ClassDef)
            yield from _nodes(node, f"{place}.{node.name}".lstrip(".") if inner else place)


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    for number, (node, place, _) in enumerate(_nodes(ast.parse(source))):
        for choice, (kind, new) in enumerate(_changes(node)):
            change = f"{_text(node)} → {'(removed)' if new is None else _text(new)}"
            yield Mutant(kind, node.lineno, place, change, number, choice)


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Tree of the file with the fault in it."""
    tree = ast.parse(source)
    node, _, put = next(itertools.islice(_nodes(tree), mutant.node, None))
    _, new = next(itertools.islice(_changes(node), mutant.choice, None))
    put(ast.copy_location(new or ast.Pass(), node))
    return ast.fix_missing_locations(tree)


def drawn(found: Sequence[Mutant], seed: int, number: int) -> list[Mutant]:
    """So many mutants, one of each kind in turn, in the order of lines."""
    chance = random.Random(seed)
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in found:
        by_kind.setdefault(mutant.kind, []).append(mutant)
    for same in by_kind.values():
        chance.shuffle(same)
    turns = itertools.zip_longest(*by_kind.values())
    in_turn = [mutant for turn in turns for mutant in turn if mutant is not None]
    return sorted(in_turn[:number], key=lambda mutant: (mutant.line, mutant.node, mutant.choice))


def _text(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of one module from a changed tree."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree
        folder = ROOT / "workers" if path.is_relative_to(ROOT / "workers") else ROOT
        self.name = ".".join(path.relative_to(folder).with_suffix("").parts)

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, self._path, "exec"), module.__dict__)


def _test(path: Path, tree: ast.Module) -> None:
    """Runs a file's tests on a tree of it, and ends the process with pytest's exit code."""
    os.setsid()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.meta_path.insert(0, _Changed(path, tree))
    tests = TESTS[str(path.relative_to(ROOT))]
    rc = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *tests])
    atexit._run_exitfuncs()
    os._exit(int(rc))


def finds_fault(path: Path, tree: ast.Module) -> bool:
    """Whether a file's tests fail, or do not end, on a tree of it."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(path, tree))
    process.start()
    process.join(SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what the tests left behind
    process.join()
    return process.exitcode != 0


def bench(name: str, seed: int, number: int) -> tuple[int, int]:
    """Prints the fate of a file's mutants; returns how many were killed, and of how many."""
    path = ROOT / name
    source = path.read_text()
    lines = source.splitlines()
    if finds_fault(path, ast.parse(source)):
        raise SystemExit(f"{name}: its tests fail without any fault")
    num_killed, num_all = 0, 0
    for mutant in drawn(list(mutants(source)), seed, number):
        written = lines[mutant.line - 1].strip()
        reason = EQUIVALENT.get((path.name, mutant.place, written, mutant.change))
        is_killed = reason is None and finds_fault(path, mutated(source, mutant))
        fate = f"equivalent ({reason})" if reason else "killed" if is_killed else "LIVED"
        print(f"{fate}: {name}:{mutant.line} {mutant.place}: {mutant.change} [{mutant.kind}]", flush=True)
        num_killed += is_killed
        num_all += reason is None
    print(f"{name}, seed {seed}: {num_killed} of {num_all} killed", flush=True)
    return num_killed, num_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", default=list(TESTS)[:2], metavar="FILE")
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--number", type=int, default=30, help="mutants of each file")
    given = parser.parse_args()
    os.chdir(ROOT)
    for heavy in ("torch", "plotly.graph_objects", "optuna", "sqlalchemy", "rich.table"):
        importlib.import_module(heavy)  # once, before the processes are forked
    counts = [bench(name, given.seed, given.number) for name in given.files]
    killed, everything = (sum(each) for each in zip(*counts, strict=True))
    print(f"{killed} of {everything} killed: {killed / everything:.0%}")


if __name__ == "__main__":
    main()
