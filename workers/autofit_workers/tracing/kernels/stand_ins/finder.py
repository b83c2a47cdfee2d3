"""Import finder that loads autofit's modules in place of a package that is not installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from types import ModuleType
from typing import Any

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.versions import parse_release
from autofit_workers.tracing.kernels.stand_ins.needed import is_needed

_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Package that predictions can replace by a module of autofit (a stand-in) if it is not installed.

    Attributes:
        package: name by which it is imported.
        distribution: name by which pip installs it.
        version: release that the stand-in imitates.
        modules: module of autofit to load, by the name of the package's module.
        oldest: oldest installed release that predictions can follow, as major and minor.
    """

    package: str
    distribution: str
    version: str
    modules: Mapping[str, str]
    oldest: tuple[int, int] = (0, 0)

    @property
    def is_installed(self) -> bool:
        """Whether the package, or a stand-in for it, can be imported."""
        return importlib.util.find_spec(self.package) is not None

    def require_followed(self) -> None:
        """Raises `UnsupportedError` if the installed release is older than `oldest`."""
        try:
            version = importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return
        if parse_release(version) < self.oldest:
            oldest = ".".join(map(str, self.oldest))
            raise UnsupportedError(
                f"{self.distribution} {version} is installed here, whose calls are no operators that can be "
                f"followed: install {oldest} or newer, or predict where it is not installed"
            )

    @property
    def note(self) -> str:
        """Note for the user that the package is not installed and its stand-in was used."""
        return (
            f"{self.distribution} is not installed here: its kernels are followed by what those of release "
            f"{self.version} take"
        )


class StandInFinder(DistributionFinder):
    """Import finder of stand-ins, which also reports their packages as installed.

    It must be the last in `sys.meta_path`, so that installed packages come first.

    Args:
        when_needed: stand-ins that are offered once code imports their package and has no other way
            (`needed.is_needed`).
        on_offer: called after such a stand-in was offered.
    """

    def __init__(
        self, when_needed: Sequence[StandIn] = (), on_offer: Callable[[], None] = lambda: None
    ) -> None:
        self.offered: dict[str, StandIn] = {}
        self._when_needed = {stand_in.package: stand_in for stand_in in when_needed}
        self._on_offer = on_offer
        if when_needed:
            sys.meta_path.append(self)

    def offer(self, stand_in: StandIn) -> None:
        """Makes later imports of the package load its stand-in."""
        self.offered[stand_in.package] = stand_in
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    @contextmanager
    def hidden(self, package: str) -> Iterator[None]:
        """Context in which a package with a stand-in seems not to be installed, even if it was imported."""
        stand_in = self.offered.pop(package, None)
        if stand_in is None:  # hidden already
            yield
            return
        imported = {name: sys.modules.pop(name) for name in stand_in.modules if name in sys.modules}
        try:
            yield
        finally:
            self.offered[package] = stand_in
            sys.modules.update(imported)

    def withdraw(self) -> None:
        """Withdraws all stand-ins and removes them from `sys.modules`."""
        for stand_in in self.offered.values():
            for name in stand_in.modules:
                sys.modules.pop(name, None)
        self.offered.clear()

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package in self._when_needed and package not in self.offered and is_needed(sys._getframe(1)):
            self.offer(self._when_needed[package])
            self._on_offer()
        stand_in = self.offered.get(package)
        if stand_in is None or fullname not in stand_in.modules:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in stand_in.modules)
        return ModuleSpec(fullname, _StandInLoader(stand_in), is_package=is_package)

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        name = None if context is None else context.name
        for stand_in in self.offered.values():
            if name is None or name.replace("_", "-").lower() == stand_in.distribution:
                yield _StandInDistribution(stand_in)


class _StandInLoader(Loader):
    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    def exec_module(self, module: ModuleType) -> None:
        """Imports the submodules of `module`, then adds the stand-in's functions to it.

        A function replaces a submodule of the same name.
        """
        ours: Any = importlib.import_module(self._stand_in.modules[module.__name__])
        for name in self._stand_in.modules:
            if name.rpartition(".")[0] == module.__name__:
                importlib.import_module(name)
        vars(module).update({name: getattr(ours, name) for name in ours.__all__})
        vars(module)["__version__"] = self._stand_in.version


class _StandInDistribution(Distribution):
    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    def read_text(self, filename: str) -> str | None:
        stand_in = self._stand_in
        texts = {
            "METADATA": _METADATA.format(name=stand_in.distribution, version=stand_in.version),
            "top_level.txt": stand_in.package,
        }
        return texts.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Any:
        raise FileNotFoundError(path)
