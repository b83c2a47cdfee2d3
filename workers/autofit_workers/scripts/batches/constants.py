"""Changes the value of a constant in a script's code, such as its batch size."""

from __future__ import annotations

import ast

from autofit_workers.spec.errors import InvalidTrialError


def with_constant(source: bytes, path: str, name: str, value: int) -> ast.Module:
    """Parsed code of a script in which the constant `name` is set to `value`.

    Raises:
        InvalidTrialError: the code assigns no whole number to `name`.
    """
    tree = ast.parse(source, path)
    editor = _Constants(name, value)
    changed: ast.Module = editor.visit(tree)
    if not editor.num_changed:
        raise InvalidTrialError(
            f"{path} assigns no whole number to {name}: --batch-name takes a constant of the code, as in "
            f"`{name} = 64`"
        )
    return ast.fix_missing_locations(changed)


class _Constants(ast.NodeTransformer):
    """AST transformer that changes a constant's value where it is assigned or used as a default."""

    def __init__(self, name: str, value: int) -> None:
        self._name = name
        self._value = value
        self.num_changed = 0

    def _number(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Constant) or type(node.value) is not int:
            return node
        self.num_changed += 1
        return ast.copy_location(ast.Constant(self._value), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if any(isinstance(target, ast.Name) and target.id == self._name for target in node.targets):
            node.value = self._number(node.value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if isinstance(node.target, ast.Name) and node.target.id == self._name and node.value is not None:
            node.value = self._number(node.value)
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        named = [*node.posonlyargs, *node.args]
        first = len(named) - len(node.defaults)
        for number, argument in enumerate(named[first:]):
            if argument.arg == self._name:
                node.defaults[number] = self._number(node.defaults[number])
        for number, argument in enumerate(node.kwonlyargs):
            default = node.kw_defaults[number]
            if argument.arg == self._name and default is not None:
                node.kw_defaults[number] = self._number(default)
        return self.generic_visit(node)
