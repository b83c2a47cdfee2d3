"""Rewrites a script's code so that its loops can be ended: `for x in each(…)` for `for x in …`.

    for epoch in range(90):                     for epoch in LOOPS.each(range(90), 1, False):
        for step, batch in enumerate(loader):       for step, batch in LOOPS.each(enumerate(loader), 2, True):
            …                                           …
            if step % 100 == 0: …                       if step % 100 == 0: …

Line numbers stay. The code after an ended loop runs, and with it evaluations and checkpoints;
if a loop's variable is used in a condition, its last iteration runs as well.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from autofit_workers.scripts.kept import METHODS
from autofit_workers.scripts.loops import Loops

_NAME = "__loops_that_may_end__"
# Beginnings of names of methods that start phases other than training.
_PHASES = {
    **dict.fromkeys(("eval", "evaluate", "validate"), "evaluation"),
    **dict.fromkeys(("save", "save_checkpoint", "save_model", "save_pretrained", "save_state"), "checkpoint"),
}
_INSTALLED = ("site-packages", "dist-packages")


class LoopCode:
    """Compiles a script and the modules of its folder, so that autofit can end their loops.

    Args:
        loops: object that ends the loops; None to compile the code unchanged.
        folder: folder of the script.
    """

    def __init__(self, loops: Loops | None, folder: str) -> None:
        self._loops = loops
        self._folder = Path(folder)

    def compiled(self, tree: ast.Module, path: str) -> CodeType:
        """Compiled code of a file, rewritten so that its loops can be ended."""
        if self._loops is not None:
            tree = ast.fix_missing_locations(_Watched(self._loops, path).visit(tree))
        return compile(tree, path, "exec")

    def add_to(self, module: ModuleType) -> None:
        """Adds the object that rewritten code calls to a module that runs such code.

        It is a name of the module and not of all modules, as `torch.compile` fails at unknown builtins.
        """
        vars(module)[_NAME] = self._loops

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Context manager that compiles modules imported from the script's folder so that loops can end."""
        if self._loops is None:
            yield
            return
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import spec of a module in the script's folder; None for any other module."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return None
        file = Path(spec.origin)
        if not file.is_relative_to(self._folder) or any(part in _INSTALLED for part in file.parts):
            return None
        spec.loader = _Loader(name, spec.origin, self)
        return spec


class _Loader(SourceFileLoader):
    """Import loader that bypasses Python's cache of compiled code, which other processes use."""

    def __init__(self, name: str, path: str, code: LoopCode) -> None:
        super().__init__(name, path)
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        self._code.add_to(module)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self._code.compiled(ast.parse(self.get_data(path), path), path)


class _Watched(ast.NodeTransformer):
    """AST transformer that inserts calls to end loops, and to report phases reached and values kept."""

    def __init__(self, loops: Loops, path: str) -> None:
        self._loops = loops
        self._path = path
        self._function = "<module>"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Compilers of functions, such as numba's, do not know the inserted calls.
        if any("jit" in ast.unparse(each) for each in node.decorator_list):
            return node
        outer, self._function = self._function, node.name
        self.generic_visit(node)
        self._function = outer
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        names = {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        decides = ast.Constant(_decide(names, node.body))
        self.generic_visit(node)
        node.iter = ast.copy_location(_asked("each", node.iter, self._site(node), decides), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        going = _asked("goes_on", self._site(node))
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [going, node.test]), node.test)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        name, site = node.func.attr, self._site(node)
        if name in _PHASES:
            self._loops.may_reach(site.value, _PHASES[name])
            node.func = ast.copy_location(_asked("reached", site, node.func), node.func)
        elif name in METHODS:
            node.func = ast.copy_location(_asked("kept.by", site, node.func), node.func)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        target = node.targets[0]
        return self._kept(node, target.value) if isinstance(target, ast.Subscript) else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return self._kept(node, node.target)

    def _kept(self, node: ast.stmt, container: ast.expr) -> ast.AST | list[ast.stmt]:
        """Statement that adds to a container, followed by a call that reports the addition.

        The statement alone is returned if the container is neither a variable nor an attribute.
        """
        if not isinstance(container, ast.Name | ast.Attribute):
            return node
        read = copy.deepcopy(container)
        read.ctx = ast.Load()
        told = ast.Expr(_asked("kept.here", self._site(node), read))
        return [node, ast.copy_location(told, node)]

    def _site(self, node: ast.stmt | ast.expr) -> ast.Constant:
        """AST constant with a node's site, `path:line:function`, in the form in which traces name lines."""
        return ast.Constant(f"{self._path}:{node.lineno}:{self._function}")


def _decide(names: set[str], body: list[ast.stmt]) -> bool:
    """Whether an `if` statement in `body` has one of the variables `names` in its condition."""
    conditions = (each.test for part in body for each in ast.walk(part) if isinstance(each, ast.If))
    named = (each.id for test in conditions for each in ast.walk(test) if isinstance(each, ast.Name))
    return any(name in names for name in named)


def _asked(method: str, *arguments: ast.expr) -> ast.Call:
    asked: ast.expr = ast.Name(_NAME, ast.Load())
    for name in method.split("."):
        asked = ast.Attribute(asked, name, ast.Load())
    return ast.Call(asked, list(arguments), [])
