"""Stand-ins for experiment trackers such as wandb, so that trying a script logs nothing and needs no tracker.

It also silences functions that push to a model hub or send mail.

`wandb`, TensorBoard and the like are replaced by objects that answer every call with another such object. A
script can read back the configuration that it gives its tracker. Libraries that only check whether a tracker
is installed find the installed ones.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from autofit_workers.spec.pythons import Self, handled_parts
from autofit_workers.workload.libraries.finders import ExecutingFinder

TRACKERS = (
    "wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim", "swanlab", "trackio", "visdom", "dvclive",
    "tensorboardX", "tensorboard_logger", "torch.utils.tensorboard",
)  # fmt: skip
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))


class _SilentType(type):
    """Metaclass of a tracker's stand-in classes: any attribute exists, as a callable without effect."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Silence()


class SilentObject(metaclass=_SilentType):
    """Stand-in for an object of a tracker, such as a writer, whose operations have no effect."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Silence()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getitem__(self, _key: Any) -> Any:
        return Silence()

    def __setitem__(self, _key: Any, _value: Any) -> None:
        return None

    def __str__(self) -> str:
        return ""

    def __fspath__(self) -> str:
        return "."


class Silence(SilentObject):
    """Stand-in for a tracker's attribute; a call returns another `Silence`, or the function it decorates."""

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        is_decorated = len(args) == 1 and callable(args[0]) and not isinstance(args[0], SilentObject | type)
        return args[0] if is_decorated else Silence()


class Configuration(dict[str, Any]):
    """Stand-in for `wandb.config`, with its values as items and attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name] if name in self else Silence()

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Copies values from dictionaries or objects, such as an argument parser's namespace."""
        kwargs.pop("allow_val_change", None)
        for given in args:
            super().update(given if isinstance(given, dict) else vars(given))
        super().update(kwargs)


_OF_ERRORS = ("Error", "Exception", "Warning")  # endings of names that a script may catch
# Number of results of functions whose callers unpack them.
_RESULTS = {"hparams": 3}


class _Tracker(ModuleType):
    """Stand-in for the module of an experiment tracker, such as wandb, or a submodule of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = "0.0.0"
        self.config = Configuration()

    def init(self, *_args: Any, config: Any = None, **_kwargs: Any) -> Any:
        """Stand-in for `init` of wandb and its like: returns a run that only stores its configuration."""
        if config is not None:
            self.config.update(config)
        run = Silence()
        run.config = self.config  # type: ignore[attr-defined]
        return run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _RESULTS:
            return lambda *_args, **_kwargs: [Silence()] * _RESULTS[name]
        value: Any = Silence()
        if name[:1].isupper():
            value = type(name, (Exception if name.endswith(_OF_ERRORS) else SilentObject,), {})
        setattr(self, name, value)
        return value


# Functions with effects that others would see, by module.
_PUBLISHING = {
    "huggingface_hub": (
        "create_repo", "create_commit", "create_branch", "create_tag", "upload_file", "upload_folder",
        "upload_large_folder", "delete_repo", "delete_file", "login",
    ),
    "huggingface_hub.hf_api": (),
    "smtplib": ("SMTP", "SMTP_SSL"),
}  # fmt: skip
_OF_HUB = _PUBLISHING["huggingface_hub"]


def publishing_finder() -> ExecutingFinder:
    """Import finder that silences the functions of modules by which a script publishes."""
    return ExecutingFinder(_PUBLISHING, _execute_silenced)


def _execute_silenced(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    execute(module)
    for name in _PUBLISHING[module.__name__]:
        setattr(module, name, Silence())
    api = vars(module).get("HfApi")
    for name in _OF_HUB if api is not None else ():
        setattr(api, name, Silence())


class TrackerFinder(MetaPathFinder, Loader):
    """Import finder that returns a stand-in for each experiment tracker."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        named = [name for name in TRACKERS if fullname == name or fullname.startswith(f"{name}.")]
        if not named:
            return None
        is_installed = "." in fullname or PathFinder.find_spec(fullname, path) is not None
        return ModuleSpec(fullname, self, is_package=True) if is_installed or _is_demanded_by_user() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Tracker(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: a stand-in has no code to run."""


def _is_demanded_by_user() -> bool:
    """Whether the user's code imports a module now, with no exception handler around the import."""
    frame = sys._getframe(2)  # noqa: SLF001
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_code.co_filename.startswith(_INSTALLED):
        return False
    return not any(frame.f_lasti in handled for handled in handled_parts(frame.f_code))
