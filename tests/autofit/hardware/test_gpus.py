from __future__ import annotations

import importlib.resources
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from ray._private.accelerators.amd_gpu import amd_product_dict
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray.util import accelerators

from autofit.errors import DriverError, UnknownGpuError
from autofit.hardware.gpus import (
    Gpu,
    LocalGpu,
    catalogue,
    catalogue_architectures,
    find_gpu,
    gpus_sold_as,
    local_gpus,
    oldest_first,
    visible_gpus,
)
from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.vendors import Vendor
from tests.each import check_each

MIB = 1024**2
GIB = 1024**3
CARDS = list(catalogue().values())
WHOLE_CARDS = [gpu for gpu in CARDS if not gpu.is_mig_slice]
SLICES = [gpu for gpu in CARDS if gpu.is_mig_slice]


def check_each_card(check: Callable[[Gpu], object], cards: list[Gpu] = CARDS) -> None:
    """Fails with the key of every card that is wrong."""
    check_each(cards, check, name=lambda gpu: gpu.key)


# ── the catalogue ───────────────────────────────────────────────────────────────────────────────


def test_the_catalogue_spans_pascal_to_blackwell_and_amd_s_instinct_cards() -> None:
    assert len(WHOLE_CARDS) >= 45
    assert {gpu.architecture for gpu in CARDS} == {
        "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120",
        "gfx90a", "gfx942", "gfx950"
    }  # fmt: skip
    assert {
        "t4",
        "v100-16g",
        "rtx-3060",
        "rtx-3090",
        "rtx-4060",
        "rtx-4090",
        "a100-40g",
        "h100-80g",
        "h200",
    } <= (catalogue().keys())


def test_no_key_of_the_file_is_lost_to_a_second_one_of_another_architecture() -> None:
    text = importlib.resources.files("autofit").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    assert sum(map(len, read_toml(text).values())) == len(catalogue())


def test_a_key_is_lower_case_words_with_hyphens() -> None:
    words = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(-mig-[1-7]g\.[0-9]+gb)?")
    assert [gpu.key for gpu in CARDS if not words.fullmatch(gpu.key)] == []


def test_a_card_reports_a_little_less_than_it_is_sold_with() -> None:
    def reports_a_little_less(gpu: Gpu) -> None:
        # ECC takes up to a sixteenth, the driver up to 750 MiB; of a small card that is a tenth.
        least = {"mi300a": 0.74, "mi350x": 0.874}.get(gpu.key, 0.875)  # HIP reports less of them
        assert least * gpu.sold_gb * GIB < gpu.total_bytes < gpu.sold_gb * GIB

    check_each_card(reports_a_little_less)


def test_a_total_names_the_log_or_the_card_it_comes_from() -> None:
    def names_its_source(gpu: Gpu) -> None:
        assert gpu.provenance in ("reported", "derived")
        assert len(gpu.source) >= 5
        if like := re.match(r"as ([a-z0-9.-]+)", gpu.source):
            model = find_gpu(like[1])
            assert (model.architecture, model.total_bytes, model.sold_gb) == (
                gpu.architecture,
                gpu.total_bytes,
                gpu.sold_gb,
            )

    check_each_card(names_its_source)


def test_an_entry_has_exactly_the_fields_that_are_documented() -> None:
    text = importlib.resources.files("autofit").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    entries = read_toml(text)

    def has_those_fields(gpu: Gpu) -> None:
        entry = entries[gpu.architecture][gpu.key]
        assert entry.keys() == {"name", "sold_gb", "total_mib", "num_sms", gpu.provenance}
        assert type(entry["total_mib"]) is int

    check_each_card(has_those_fields)


def test_a_slice_is_a_part_of_its_card() -> None:
    def is_a_part(gpu: Gpu) -> None:
        card = find_gpu(gpu.key.split("-mig-")[0])
        profile = re.search(r"([1-7])g\.([0-9]+)gb$", gpu.key)
        assert profile is not None
        assert gpu.architecture == card.architecture
        assert gpu.name == f"{card.name} MIG {profile[0]}"
        assert gpu.sold_gb == int(profile[2])
        assert gpu.num_sms < card.num_sms
        assert gpu.total_bytes <= card.total_bytes * gpu.sold_gb // card.sold_gb + GIB

    check_each_card(is_a_part, SLICES)


# Facts of NVIDIA's white papers and data sheets, and totals that many public logs agree on.
@pytest.mark.parametrize(
    ("key", "architecture", "num_sms", "total_mib"),
    [
        ("t4", "sm_75", 40, 14912),
        ("p100", "sm_60", 56, 16269),
        ("gtx-1080-ti", "sm_61", 28, 11161),
        ("v100-32g", "sm_70", 80, 32494),
        ("rtx-3060", "sm_86", 28, 11906),
        ("rtx-3090", "sm_86", 82, 24123),
        ("rtx-4090", "sm_89", 128, 24080),
        ("l4", "sm_89", 58, 22518),
        ("a100-40g", "sm_80", 108, 40326),
        ("a100-80g-mig-1g.10gb", "sm_80", 14, 9728),
        ("h100-80g", "sm_90", 132, 81081),
        ("h200", "sm_90", 132, 143156),
        ("b200", "sm_100", 148, 182631),
        ("rtx-5090", "sm_120", 170, 32102),
        ("mi210", "gfx90a", 104, 65520),
        ("mi250x", "gfx90a", 110, 65520),
        ("mi300x", "gfx942", 304, 196285),
        ("mi308x", "gfx942", 80, 196285),
        ("mi355x", "gfx950", 256, 294886),
    ],
)
def test_well_known_cards_are_right(key: str, architecture: str, num_sms: int, total_mib: int) -> None:
    gpu = find_gpu(key)
    assert (gpu.architecture, gpu.num_sms, gpu.total_bytes) == (architecture, num_sms, total_mib * MIB)


# ── finding a card ──────────────────────────────────────────────────────────────────────────────


def test_a_card_is_found_by_its_key_and_by_the_name_cuda_gives_it() -> None:
    def is_found(gpu: Gpu) -> None:
        assert find_gpu(gpu.key) is gpu
        assert find_gpu(gpu.name) is gpu

    check_each_card(is_found)


@pytest.mark.parametrize("spelling", ["RTX-3090", "rtx 3090", "rtx3090", " RTX_3090 "])
def test_case_and_separators_do_not_matter(spelling: str) -> None:
    assert find_gpu(spelling).key == "rtx-3090"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A100-SXM4-40GB", "a100-40g"),  # as nvidia-smi says it
        ("nvidia a100-80g", "a100-80g"),
        ("GeForce RTX 4060 Ti", "rtx-4060-ti"),
        ("H100 PCIe", "h100-pcie-80g"),
        ("h100-pcie", "h100-pcie-80g"),
        ("gh200", "gh200-96g"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("rtx3060", "rtx-3060"),  # and not the Ti
        ("3090", "rtx-3090"),
        ("GTX 1080 Ti", "gtx-1080-ti"),
        ("gtx1080ti", "gtx-1080-ti"),
        ("1060 6GB", "gtx-1060"),
        ("RTX 3080 10GB", "rtx-3080"),
        ("RTX 3080 12GB", "rtx-3080-12g"),
        ("T4-16GB", "t4"),
        ("a6000", "rtx-a6000"),
        ("RTX 8000", "quadro-rtx-8000"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("V100-PCIE-32GB", "v100-32g"),
        ("A100 80GB PCIe", "a100-80g"),
        ("H100-SXM5-80GB", "h100-80g"),
        ("TITAN X Pascal", "titan-x"),
        ("MI300X", "mi300x"),
        ("amd-instinct-mi300x", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),  # in a virtual machine
        ("AMD-Instinct-MI325X-OAM", "mi325x"),  # as Ray says it
        ("AMD Instinct MI250X / MI250", "mi250"),
        ("AMD Instinct MI250X/MI250", "mi250"),
        ("mi250x", "mi250x"),
        ("Instinct MI250", "mi250"),
    ],
)
def test_a_card_is_found_by_what_people_call_it(name: str, key: str) -> None:
    assert find_gpu(name).key == key


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("a100", "'a100' may be a100-40g or a100-80g: name one of them"),
        ("NVIDIA H100", "may be h100-80g, h100-pcie-80g or h100-nvl-94g: name"),
        ("rtx", "rtx-2060, rtx-2060-12g, rtx-2070, rtx-2070-super, rtx-2080 or one of "),
        ("rtx 5000", "'rtx 5000' may be quadro-rtx-5000 or rtx-5000-ada: name one of them"),
        ("H100 SXM", "may be h100-80g or h100-nvl-94g: name"),
        ("rtx-3095", "rtx-3090"),
        ("rtx 4070 xt", "rtx-4070"),
        ("V100", "v100-16g or v100-32g: name"),
        ("mi300", "Did you mean mi300a or mi300x?"),
        ("MI301X", "mi300x"),
    ],
)
def test_an_unknown_card_is_refused_with_near_names_and_a_way_out(name: str, near: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(name)
    assert near in str(caught.value)
    assert "autofit gpus" in str(caught.value)
    assert "--gpu-mem" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mps", "Apple's GPUs (mps)"),
        ("Apple M2 Max", "Apple's GPUs (mps)"),
        ("xpu", "Intel's GPUs (xpu)"),
        ("Arc A770", "Intel's GPUs (xpu)"),
        ("rx-7900-xtx", "AMD's Radeon cards"),
        ("Radeon PRO W7900", "AMD's Radeon cards"),
        ("Jetson AGX Orin", "share one memory"),
        ("tpu-v4", "by CUDA or ROCm"),
        ("cpu", "tune --device cpu"),
        ("GTX 980 Ti", "no cards before Pascal"),
        ("Tesla K80", "no cards before Pascal"),
        ("GeForce GTX TITAN X", "no cards before Pascal"),
    ],
)
def test_a_device_that_is_no_card_of_the_catalogue_is_told_with_what_is_known(name: str, said: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(name)
    assert said in str(caught.value)
    assert "Did you mean" not in str(caught.value)


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu("quantum")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "-", "NVIDIA", "AMD Instinct"])
def test_what_is_no_name_is_no_card(name: str) -> None:
    with pytest.raises(UnknownGpuError):
        find_gpu(name)


# ── the cards of a nominal class ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("total_bytes", [16 * GIB, 16 * 10**9, 15360 * MIB])
def test_16g_means_every_card_sold_as_16_gb_the_smallest_first(total_bytes: int) -> None:
    found = gpus_sold_as(total_bytes)
    assert {gpu.key for gpu in found} == {gpu.key for gpu in WHOLE_CARDS if gpu.sold_gb == 16} | {
        gpu.key for gpu in found if gpu.sold_gb != 16
    }
    assert all(gpu.sold_gb == 16 for gpu in found)
    assert found[0].total_bytes == min(gpu.total_bytes for gpu in found)
    assert [gpu.total_bytes for gpu in found] == sorted(gpu.total_bytes for gpu in found)
    assert {"t4", "v100-16g", "rtx-4080"} <= {gpu.key for gpu in found}


def test_a_card_is_meant_by_what_it_reports_and_by_what_it_is_sold_as() -> None:
    def is_meant(gpu: Gpu) -> None:
        for total_bytes in (gpu.total_bytes, gpu.sold_gb * GIB, gpu.sold_gb * 10**9):
            assert gpu in gpus_sold_as(total_bytes)

    check_each_card(is_meant, WHOLE_CARDS)


def test_slices_are_not_sold() -> None:
    assert not any(gpu.is_mig_slice for total in range(4, 150) for gpu in gpus_sold_as(total * GIB))


def test_an_odd_size_is_nobody_s() -> None:
    assert gpus_sold_as(37 * GIB) == ()


# ── the cards of this machine ───────────────────────────────────────────────────────────────────


@dataclass
class Card:
    name: str
    total_mib: int
    reserved_mib: int
    free_mib: int
    capability: tuple[int, int] = (8, 0)
    mig_mode: int | None = None  # None: the card cannot do it
    slices: dict[int, Card] = field(default_factory=dict)


class FakeNvml:
    """The part of pynvml that is used, over cards of our own; errors are pynvml's real ones."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_NotFound = pynvml.NVMLError_NotFound
    NVML_ERROR_LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    NVML_ERROR_DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815 - pynvml's name

    def __init__(self, *cards: Card, on_init: int | None = None, on_memory: int | None = None) -> None:
        self.cards = cards
        self.on_init = on_init
        self.on_memory = on_memory
        self.num_open = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self, "_" + name.removeprefix("nvml"))  # type: ignore[no-any-return]

    def _Init(self) -> None:  # noqa: N802
        if self.on_init is not None:
            raise pynvml.NVMLError(self.on_init)
        self.num_open += 1

    def _Shutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def _SystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def _DeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def _DeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self.cards[index]

    def _DeviceGetMigMode(self, card: Card) -> tuple[int, int]:  # noqa: N802
        if card.mig_mode is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card.mig_mode, card.mig_mode

    def _DeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return 7

    def _DeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:  # noqa: N802
        if index not in card.slices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return card.slices[index]

    def _DeviceGetMemoryInfo(self, card: Card, version: int) -> SimpleNamespace:  # noqa: N802
        assert version == pynvml.nvmlMemory_v2
        if self.on_memory is not None:
            raise pynvml.NVMLError(self.on_memory)
        return SimpleNamespace(
            total=card.total_mib * MIB, reserved=card.reserved_mib * MIB, free=card.free_mib * MIB
        )

    def _DeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:  # noqa: N802
        return card.capability

    def _DeviceGetName(self, card: Card) -> str:  # noqa: N802
        return card.name

    def _DeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        return f"GPU-{card.name}"


def test_a_card_that_is_not_named_may_be_of_any_of_nvidia_s_architectures_from_volta_on() -> None:
    architectures = catalogue_architectures()
    usual = {gpu.architecture for gpu in CARDS if gpu.vendor is Vendor.NVIDIA} - {"sm_60", "sm_61"}
    assert set(architectures) == usual
    assert (architectures[0], architectures[-1]) == ("sm_70", "sm_120")
    everything = ("sm_60", "sm_61", *architectures, "gfx90a", "gfx942", "gfx950")
    assert oldest_first(gpu.architecture for gpu in CARDS) == everything


def test_a_local_card_is_described_without_the_driver_s_own_part() -> None:
    nvml = FakeNvml(Card("NVIDIA H200", 143771, 615, 140000, capability=(9, 0)))
    assert local_gpus(nvml) == (
        LocalGpu(
            name="NVIDIA H200",
            uuid="GPU-NVIDIA H200",
            architecture="sm_90",
            total_bytes=143156 * MIB,
            used_bytes=3156 * MIB,
            driver_version="580.95.05",
        ),
    )
    assert nvml.num_open == 0


def test_blackwell_s_architecture_has_three_digits() -> None:
    (gpu,) = local_gpus(FakeNvml(Card("NVIDIA B200", 183359, 728, 182631, capability=(10, 0))))
    assert gpu.architecture == "sm_100"


def test_a_card_in_mig_mode_is_listed_by_its_slices() -> None:
    slices = {
        0: Card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096, 0, 20000),
        4: Card("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 0, 4800),
    }
    nvml = FakeNvml(
        Card(
            "NVIDIA A100-SXM4-40GB", 40960, 571, 40000, mig_mode=pynvml.NVML_DEVICE_MIG_ENABLE, slices=slices
        ),
        Card("NVIDIA A100-SXM4-40GB", 40960, 571, 40000, mig_mode=pynvml.NVML_DEVICE_MIG_DISABLE),
    )
    found = local_gpus(nvml)
    assert [gpu.name for gpu in found] == [*(card.name for card in slices.values()), "NVIDIA A100-SXM4-40GB"]
    assert {gpu.architecture for gpu in found} == {"sm_80"}
    assert find_gpu(found[0].name).key == "a100-40g-mig-3g.20gb"


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, ["GPU-a1", "GPU-b2", "MIG-c3"]),
        ("", []),
        ("-1", []),
        ("2, 0", ["MIG-c3", "GPU-a1"]),
        ("GPU-b,MIG-c3", ["GPU-b2", "MIG-c3"]),
        ("1,7,0", ["GPU-b2"]),
        ("GPU-x,0", []),
        ("all", []),
    ],
)
def test_of_a_machine_s_cards_those_count_that_cuda_shows_the_process(
    variable: str | None, visible: list[str]
) -> None:
    cards = [
        LocalGpu(
            name="a card",
            uuid=uuid,
            architecture="sm_80",
            total_bytes=1,
            used_bytes=0,
            driver_version="580.95.05",
        )
        for uuid in ("GPU-a1", "GPU-b2", "MIG-c3")
    ]
    assert [gpu.uuid for gpu in visible_gpus(cards, variable)] == visible


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED],
    ids=["library", "driver"],
)
def test_a_machine_without_a_driver_has_no_cards(code: int) -> None:
    assert local_gpus(FakeNvml(on_init=code)) == ()


def test_a_driver_without_cards_has_no_cards() -> None:
    nvml = FakeNvml()
    assert local_gpus(nvml) == ()
    assert nvml.num_open == 0


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_NO_PERMISSION],
    ids=["mismatch", "permission"],
)
def test_a_driver_that_does_not_start_is_an_error_that_says_what_to_look_at(code: int) -> None:
    with pytest.raises(DriverError, match=r"does not answer.*nvidia-smi.*--probe predict") as caught:
        local_gpus(FakeNvml(on_init=code))
    assert str(pynvml.NVMLError(code)) in str(caught.value)
    assert caught.value.exit_code == 5


def test_a_card_that_does_not_answer_is_an_error_and_nvml_is_left_closed() -> None:
    nvml = FakeNvml(Card("NVIDIA L4", 23034, 341, 22693), on_memory=pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(DriverError, match="GPU is lost"):
        local_gpus(nvml)
    assert nvml.num_open == 0


def test_pynvml_is_asked_unless_told_otherwise() -> None:
    assert [gpu.uuid for gpu in local_gpus()] == [gpu.uuid for gpu in local_gpus(pynvml)]


def test_cards_are_called_what_ray_calls_them() -> None:
    for gpu in catalogue().values():
        if gpu.vendor is Vendor.AMD:
            assert set(gpu.accelerator_types) < set(amd_product_dict.values()), gpu.key
            continue
        rays_name = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(gpu.name)
        assert gpu.accelerator_types[-1] == rays_name, gpu.key


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("a100-40g", (accelerators.accelerators.NVIDIA_A100_40G, accelerators.NVIDIA_A100)),
        ("a100-80g-mig-1g.10gb", (accelerators.accelerators.NVIDIA_A100_80G, accelerators.NVIDIA_A100)),
        ("h100-nvl-94g", (accelerators.NVIDIA_H100,)),
        ("v100-16g", (accelerators.NVIDIA_TESLA_V100,)),
        ("rtx-3090", ("GeForce-RTX-3090",)),
        ("mi250", (accelerators.accelerators.AMD_INSTINCT_MI250,)),
        ("mi300a", (accelerators.accelerators.AMD_INSTINCT_MI300A,)),
        ("mi300x", (accelerators.accelerators.AMD_INSTINCT_MI300x,)),
    ],
)
def test_a_card_that_ray_has_several_names_for_has_the_most_exact_one_first(
    key: str, kinds: tuple[str, ...]
) -> None:
    assert find_gpu(key).accelerator_types == kinds


def test_the_functions_that_are_used_exist_in_pynvml() -> None:
    used = [name for name in vars(FakeNvml) if re.match(r"_[A-Z]", name)]
    assert len(used) == 12
    assert [name for name in used if not callable(getattr(pynvml, f"nvml{name[1:]}", None))] == []


def test_importing_the_foundation_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import autofit.hardware.budget, autofit.errors, autofit.hardware.gpus\n"
        "import autofit.paths, autofit.settings.tune_settings, autofit.units\n"
        "autofit.hardware.gpus.catalogue()\n"
        "heavy = ('torch', 'ray', 'optuna', 'rich', 'click', 'pynvml')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
