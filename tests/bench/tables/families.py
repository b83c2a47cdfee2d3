"""Families of models, by the module of timm that defines them."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

ACCEPTANCE = "acceptance"
# Those that the project promises an accuracy for.
ACCEPTANCE_FAMILIES = (
    "resnet",
    "vgg",
    "resnext",
    "regnet",
    "efficientnet",
    "mobilenet",
    "densenet",
    "convnext",
    "vit",
    "swin",
)
GONE = "gone"

_FAMILY_OF_MODULE = {
    "deit": "vit",
    "mobilenetv3": "mobilenet",
    "swin_transformer": "swin",
    "swin_transformer_v2": "swin",
    "swin_transformer_v2_cr": "swin",
    "vision_transformer": "vit",
    "vision_transformer_hybrid": "vit-hybrid",
    "vision_transformer_relpos": "vit-relpos",
}


def family_of(model: str, module: str | None) -> str:
    """The family of a model that this module of timm defines; `gone` where none does.

    The module decides, except where it holds what the literature keeps apart: ResNeXt among the
    ResNets, MobileNet among the networks that are made of the same blocks as EfficientNet.
    """
    if module is None:
        return GONE
    if module == "resnet" and "resnext" in model:
        return "resnext"
    if module == "efficientnet" and "mobilenet" in model:
        return "mobilenet"
    return _FAMILY_OF_MODULE.get(module, module)


def groups_of(family: str) -> tuple[str, ...]:
    return (ACCEPTANCE,) if family in ACCEPTANCE_FAMILIES else ()


@functools.cache
def timm_modules() -> dict[str, str]:
    """The module that defines each model of the timm that is installed, its old names included.

    Read from timm's source, because importing it takes as long as a hundred predictions.
    """
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the tables of timm's models need timm: pip install timm")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return {
        name: path.stem
        for path in sorted(folder.glob("*.py"))
        for name in _registered(ast.parse(path.read_text(encoding="utf-8")))
    }


def _registered(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if any(isinstance(d, ast.Name) and d.id == "register_model" for d in node.decorator_list):
                names.append(node.name)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Name) and call.func.id == "register_model_deprecations":
                names += [
                    key.value
                    for argument in call.args
                    if isinstance(argument, ast.Dict)
                    for key in argument.keys
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                ]
    return names
