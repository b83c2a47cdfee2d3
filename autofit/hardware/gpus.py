"""Catalogue of cards, and the NVIDIA cards of this machine as NVML reports them.

The catalogue is `data/gpus.toml`, which also says where each of its figures comes from.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.errors import DriverError, UnknownGpuError, did_you_mean, either
from autofit.hardware.gpu_names import known_elsewhere, matching
from autofit_workers.spec.architecture import Architecture, of_capability
from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.vendors import Vendor

_MIB = 1024**2
_MOST_NAMES = 4096  # in a cache
# Words in capitals up to the first that has a digit: V100, A100, RTX PRO 6000; not GeForce RTX 3090.
_RAY_MODEL = re.compile(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)")
_OAM_BOARDS = re.compile(r"MI3\d\dX")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Card of the catalogue, or a MIG slice of one.

    Attributes:
        key: name in the catalogue, such as `rtx-3090`.
        name: name that CUDA or HIP gives the card.
        architecture: `sm_XY`, from the compute capability, or AMD's `gfxNNN`.
        num_sms: number of streaming multiprocessors; on AMD's cards, of compute units.
        sold_gb: memory that it is sold with, in the seller's GB.
        total_bytes: total memory that CUDA or HIP reports (`totalGlobalMem` of the device's properties).
        provenance: origin of `total_bytes`: `reported` if it was seen in a log, `derived` if it was concluded
            from a similar card.
        source: the log, or the similar card and how the total follows from it.
    """

    key: str
    name: str
    architecture: str
    num_sms: int
    sold_gb: int
    total_bytes: int
    provenance: str
    source: str

    @property
    def vendor(self) -> Vendor:
        return Architecture.of(self.architecture).vendor

    @property
    def is_mig_slice(self) -> bool:
        return "-mig-" in self.key

    @property
    def whole_card_key(self) -> str:
        """Key of the card that a MIG slice belongs to; for a whole card its own key."""
        return self.key.partition("-mig-")[0]

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        """Names under which a Ray cluster may offer the card, the most specific first, Ray's own last.

        Ray calls them accelerator types. It names a node's card after the driver's name
        (`_gpu_name_to_accelerator_type` of `ray/_private/accelerators/nvidia_gpu.py`), AMD's after their
        device ids (`amd_gpu.py` beside it). `A100-40G` and `A100-80G` of `ray.util.accelerators` are given to
        nodes by hand.
        """
        return _ACCELERATOR_TYPES[self.vendor](self)


def _by_model(gpu: Gpu) -> tuple[str, ...]:
    match = _RAY_MODEL.match(gpu.name)
    name = match.group(1) if match else gpu.name.removeprefix("NVIDIA").strip()
    usual = name.replace(" ", "-")
    return (f"A100-{catalogue()[gpu.whole_card_key].sold_gb}G", usual) if usual == "A100" else (usual,)


def _by_whole_name(gpu: Gpu) -> tuple[str, ...]:
    words = "-".join(re.findall(r"\w+", gpu.name))
    return (f"{words}-OAM" if _OAM_BOARDS.search(gpu.name) else words,)


_ACCELERATOR_TYPES = {Vendor.NVIDIA: _by_model, Vendor.AMD: _by_whole_name}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """NVIDIA card in this machine or, in MIG mode, one of its slices.

    Attributes:
        total_bytes: total memory by NVML, less what the driver takes; CUDA may report some 30 MiB less.
        used_bytes: bytes that all processes together hold on the card now.
        architecture: `sm_XY`, from its compute capability.
    """

    name: str
    uuid: str
    architecture: str
    total_bytes: int
    used_bytes: int
    driver_version: str


@functools.cache
def catalogue() -> Mapping[str, Gpu]:
    """All cards of the catalogue by key, in file order: by architecture."""
    text = importlib.resources.files("autofit").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    return {
        key: _gpu(key, architecture, entry)
        for architecture, entries in read_toml(text).items()
        for key, entry in entries.items()
    }


def _gpu(key: str, architecture: str, entry: dict[str, Any]) -> Gpu:
    provenance = "reported" if "reported" in entry else "derived"
    return Gpu(
        key=key,
        name=entry["name"],
        architecture=architecture,
        num_sms=entry["num_sms"],
        sold_gb=entry["sold_gb"],
        total_bytes=entry["total_mib"] * _MIB,
        provenance=provenance,
        source=entry[provenance],
    )


@functools.lru_cache(maxsize=_MOST_NAMES)
def find_gpu(name: str) -> Gpu:
    """Card of the catalogue that `name` means: a key, a CUDA name, or a part that only one card matches.

    Raises:
        UnknownGpuError: no card matches, or several do. The message names them or similar keys, or gives
            advice on a device outside the catalogue.
    """
    found = matching(name, catalogue().values())
    if len(found) == 1:
        return found[0]
    elsewhere = known_elsewhere(name)
    if found:
        which = f"{name!r} may be {either([gpu.key for gpu in found])}: name one of them"
    elif elsewhere is not None:
        raise UnknownGpuError(
            f"{name!r} is not in the catalogue: {elsewhere} (`autofit gpus` lists all cards)"
        )
    else:
        near = did_you_mean("-".join(name.split()), catalogue()).strip()
        which = f"no card named {name!r} in the catalogue{f' ({near})' if near else ''}"
    raise UnknownGpuError(
        f"{which}; `autofit gpus` lists all cards, and any other is given by the memory that CUDA reports, "
        "such as --gpu-mem 24123M"
    )


def gpus_sold_as(total_bytes: int) -> tuple[Gpu, ...]:
    """Cards of the catalogue that a user may mean by a memory size, the smallest first.

    For example, a card sold as 16 GB may be meant by 16 GiB, by 16 × 10⁹ bytes, and by all sizes between the
    memory that CUDA reports and 16 GiB. MIG slices are not sold, so they are left out.
    """
    candidates = (
        gpu
        for gpu in catalogue().values()
        if not gpu.is_mig_slice
        and min(gpu.total_bytes, gpu.sold_gb * 1000**3) <= total_bytes <= gpu.sold_gb * 1024**3
    )
    return tuple(sorted(candidates, key=lambda gpu: (gpu.total_bytes, gpu.key)))


def catalogue_architectures() -> tuple[str, ...]:
    """Architectures that an unnamed card may have, the oldest first.

    These are NVIDIA's from Volta on, for which cuDNN's choices of kernels are known. AMD's and older cards
    need another build of PyTorch, so their users name them.
    """
    names = {gpu.architecture for gpu in catalogue().values()}
    return oldest_first(name for name in names if Architecture.of(name).is_planned_for)


def oldest_first(architectures: Iterable[str]) -> tuple[str, ...]:
    """Architectures without repetitions, the oldest first; NVIDIA's come before other vendors'."""
    return tuple(sorted(set(architectures), key=lambda name: Architecture.of(name).age))


def local_gpus(nvml: Any = None) -> tuple[LocalGpu, ...]:
    """NVIDIA cards of this machine, read from the driver without creating a CUDA context.

    Args:
        nvml: module with the functions of `pynvml`; None for `pynvml` itself.

    Returns:
        One entry for each card or MIG slice; empty without an NVIDIA driver.

    Raises:
        DriverError: the driver is installed but does not answer.
    """
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return ()
        raise _driver_error(error) from error
    try:
        driver_version = nvml.nvmlSystemGetDriverVersion()
        return tuple(
            _local_gpu(nvml, device, card, driver_version)
            for card in map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            for device in _devices(nvml, card)
        )
    except nvml.NVMLError as error:
        raise _driver_error(error) from error
    finally:
        nvml.nvmlShutdown()


def visible_gpus(gpus: Sequence[LocalGpu], variable: str | None) -> tuple[LocalGpu, ...]:
    """GPUs of a machine that a process sees with a given `CUDA_VISIBLE_DEVICES`.

    Args:
        gpus: all GPUs of the machine, in the driver's order.
        variable: the process's `CUDA_VISIBLE_DEVICES`: numbers, or beginnings of UUIDs; the first entry that
            names no GPU ends the list. None if it is not set.
    """
    if variable is None:
        return tuple(gpus)
    visible: list[LocalGpu] = []
    for name in (part.strip() for part in variable.split(",")):
        found = [
            gpu
            for number, gpu in enumerate(gpus)
            if name == str(number) or (name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name))
        ]
        if not found:
            break
        visible.append(found[0])
    return tuple(visible)


def _driver_error(error: Exception) -> DriverError:
    return DriverError(
        f"the NVIDIA driver is installed but does not answer ({error}): check that `nvidia-smi` works, "
        "or predict without the driver: --gpu CARD --probe predict"
    )


def _devices(nvml: Any, card: Any) -> Iterator[Any]:
    """Yields the NVML devices that CUDA sees of a card: its slices in MIG mode, else the card itself."""
    try:
        mig_mode, _ = nvml.nvmlDeviceGetMigMode(card)
    except nvml.NVMLError_NotSupported:
        mig_mode = None
    if mig_mode != nvml.NVML_DEVICE_MIG_ENABLE:
        yield card
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except nvml.NVMLError_NotFound:
            continue  # slices keep their index when another one is destroyed


def _local_gpu(nvml: Any, device: Any, card: Any, driver_version: str) -> LocalGpu:
    """GPU of this machine as NVIDIA's driver describes it."""
    # Version 2 reports the driver's own part, which CUDA does not count. Drivers differ in whether `used`
    # includes that part, so used memory is what is neither reserved nor free.
    memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    return LocalGpu(
        name=nvml.nvmlDeviceGetName(device),
        uuid=nvml.nvmlDeviceGetUUID(device),
        architecture=of_capability(major, minor),
        total_bytes=memory.total - memory.reserved,
        used_bytes=memory.total - memory.reserved - memory.free,
        driver_version=driver_version,
    )
