from __future__ import annotations

import importlib.resources
import json

import pytest

from autofit.errors import UnknownGpuError
from autofit.hardware.chips import TYPICAL_CARDS, device_properties, properties_for
from autofit.hardware.gpus import Gpu, catalogue, find_gpu
from autofit_workers.replay.plans.device_properties import ARCHITECTURE_LIMITS, DeviceProperties
from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.vendors import Vendor
from tests.each import check_each

CARDS = [gpu for gpu in catalogue().values() if gpu.vendor is Vendor.NVIDIA]
CHIPS = read_toml(
    importlib.resources.files("autofit").joinpath("data/chips.toml").read_text(encoding="utf-8")
)


def test_the_chips_are_those_of_the_whole_cards_in_their_architectures() -> None:
    whole_cards = [(gpu.architecture, gpu.key) for gpu in CARDS if not gpu.is_mig_slice]
    assert [(architecture, key) for architecture, chips in CHIPS.items() for key in chips] == whole_cards


def test_every_chip_says_where_it_was_seen() -> None:
    entries = [entry for chips in CHIPS.values() for entry in chips.values()]
    assert all(
        entry.keys() == {"sm_mhz", "memory_mhz", "bus_bits", "l2_kib", "source"}
        and entry["source"].startswith(("deviceQuery", "XLA", "data sheet"))
        for entry in entries
    )


def test_every_card_has_plausible_properties() -> None:
    def is_plausible(gpu: Gpu) -> None:
        properties = device_properties(gpu)
        assert (properties.name, properties.num_sms) == (gpu.name, gpu.num_sms)
        assert 1_100_000 <= properties.sm_clock_khz <= 2_700_000
        assert properties.memory_bus_bits % 32 == 0
        # Two bits a line and clock: between a GTX 1050's 112 GB/s and a B200's 8 TB/s, of a slice an eighth.
        bytes_per_second = 2 * 1000 * properties.memory_clock_khz * properties.memory_bus_bits // 8
        assert 112e9 <= bytes_per_second <= 8e12
        assert properties.l2_bytes % (256 * 1024) == 0

    check_each(CARDS, is_plausible, name=lambda gpu: gpu.key)


@pytest.mark.parametrize(
    ("key", "gigabytes_per_second"),
    # NVIDIA's data sheets.
    [
        ("t4", 320),
        ("v100-32g", 900),
        ("a100-40g", 1555),
        ("a100-80g", 2039),
        ("rtx-3090", 936),
        ("rtx-4090", 1008),
        ("l4", 300),
        ("h100-80g", 3350),
        ("h100-nvl-94g", 3900),
        ("h200", 4800),
        ("rtx-5090", 1792),
        ("rtx-pro-6000", 1792),
    ],
)
def test_clock_and_bus_make_the_bandwidth_of_the_data_sheet(key: str, gigabytes_per_second: int) -> None:
    properties = device_properties(find_gpu(key))
    bandwidth = 2 * 1000 * properties.memory_clock_khz * properties.memory_bus_bits / 8 / 1e9
    assert bandwidth == pytest.approx(gigabytes_per_second, rel=0.03)


def test_a_slice_has_its_share_of_bus_and_cache() -> None:
    # As openxla/xla's h100_sxm_mig.txtpb has them.
    properties = device_properties(find_gpu("h100-80g-mig-1g.10gb"))
    assert (properties.num_sms, properties.l2_bytes, properties.memory_bus_bits) == (16, 6553600, 640)
    assert properties.sm_clock_khz == device_properties(find_gpu("h100-80g")).sm_clock_khz
    assert device_properties(find_gpu("a30-mig-1g.6gb")).memory_bus_bits == 3072 // 4
    assert device_properties(find_gpu("h200-mig-3g.71gb")).memory_bus_bits == 6144 // 2


def test_every_architecture_of_the_catalogue_has_limits_and_a_typical_card() -> None:
    architectures = {gpu.architecture for gpu in CARDS}
    assert architectures == ARCHITECTURE_LIMITS.keys() == TYPICAL_CARDS.keys()
    assert all(find_gpu(key).architecture == architecture for architecture, key in TYPICAL_CARDS.items())


def test_a_named_card_is_itself_and_an_unknown_one_is_typical() -> None:
    assert properties_for("sm_86", "NVIDIA A10") == device_properties(find_gpu("a10"))
    assert properties_for("sm_86", "NVIDIA Something") == device_properties(find_gpu("rtx-3090"))
    assert properties_for("sm_80") == device_properties(find_gpu("a100-40g"))
    assert properties_for("sm_80", "NVIDIA A10").name == "NVIDIA A100-SXM4-40GB"


def test_an_architecture_without_cards_is_named() -> None:
    with pytest.raises(UnknownGpuError, match="sm_52"):
        properties_for("sm_52")


def test_the_descriptor_has_what_cudnn_reads() -> None:
    fields = json.loads(device_properties(find_gpu("a100-40g")).to_json())
    assert len(fields) == 27
    assert fields["deviceVer"] == 800
    assert (fields["multiProcessorCount"], fields["maxCtasPerSM"], fields["maxThreadsPerSM"]) == (
        108,
        32,
        2048,
    )
    assert (fields["maxSharedMemoryPerBlock"], fields["maxSharedMemoryPerBlockOptin"]) == (49152, 166912)
    assert (fields["smClockRateKHz"], fields["memClockRateKHz"]) == (1410000, 1215000)
    assert (fields["memoryBusWidth"], fields["l2CacheSize"]) == (5120, 41943040)


def test_properties_of_an_unknown_architecture_are_refused() -> None:
    with pytest.raises(ValueError, match="sm_52"):
        DeviceProperties(
            name="GTX 980",
            architecture="sm_52",
            num_sms=16,
            total_bytes=4 * 1024**3,
            sm_clock_khz=1216000,
            memory_clock_khz=3505000,
            memory_bus_bits=256,
            l2_bytes=2 * 1024**2,
        )
