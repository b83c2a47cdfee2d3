"""Tells imports that a program cannot do without from those for which it has another way.

Programs look for optional libraries by `importlib.util.find_spec`, or import them within `try`. Either finds
that a library is not installed, as in the environment here. A plain `import` ends the program where it is
missing, so where the program runs the library must be there.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType

_IMPORTS = "<frozen importlib"  # files of Python's own import system


def is_needed(frame: FrameType | None) -> bool:
    """Whether the import that Python is following is one whose failure nothing would catch.

    Args:
        frame: innermost frame of the import. All statements are looked at that imported one another up to it.
    """
    is_import = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_IMPORTS):
            is_import = True
        elif not is_import:
            return True  # what runs the program, or calls the function that imports
        elif _is_optional(name, frame.f_lineno):
            return False
        else:
            is_import = False
        frame = frame.f_back
    return True


def _is_optional(file: str, line: int) -> bool:
    """Whether the statement on a line is no import, or within `try` or `suppress`."""
    source = "".join(linecache.getlines(file))
    imports, guards = _of(source)
    return line not in imports or any(first <= line <= last for first, last in guards)


@functools.lru_cache(maxsize=256)
def _of(source: str) -> tuple[frozenset[int], tuple[tuple[int, int], ...]]:
    """Lines of import statements, and the first and last line of each block whose errors are caught."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # of another Python
        return frozenset(), ()
    lines: set[int] = set()
    guards = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif (isinstance(node, ast.Try) and node.handlers) or _suppresses(node):
            body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
            guards.append((body[0].lineno, body[-1].end_lineno or body[-1].lineno))
    return frozenset(lines), tuple(guards)


def _suppresses(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("suppress" in ast.unparse(item) for item in node.items)
