"""`models`, `gpus`, `conv-algos`: everything is listed, and the documents say the same."""

from __future__ import annotations

import pytest

from autofit.errors import DriverError
from autofit.hardware.gpus import LocalGpu, catalogue, find_gpu
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.workloads.builtins import BUILTINS

RTX_3090 = LocalGpu(
    name="NVIDIA GeForce RTX 3090",
    uuid="GPU-1",
    architecture="sm_86",
    total_bytes=25_294_798_848,
    used_bytes=0,
    driver_version="580.1",
)


def no_gpus():
    return ()


def test_models_says_of_each_what_it_is_and_where_it_is_from(autofit):
    finished = autofit("models")
    assert finished.code == 0
    for builtin in BUILTINS.values():
        assert f"\n{builtin.name} " in finished.out
        assert builtin.source in finished.out


def test_the_document_of_models_has_them_all(autofit):
    document = autofit("models", "--json").document
    assert document["schema"] == "autofit.models/1"
    assert [model["name"] for model in document["models"]] == list(BUILTINS)
    assert document["models"][0]["optimizer"] == BUILTINS["davenet"].optimizer


def test_conv_algos_shows_the_lines_that_choose_each(autofit):
    finished = autofit("conv-algos")
    for policy in conv.offered():
        assert policy.name in finished.out
        assert all(line in finished.out for line in policy.python_lines)
    document = autofit("conv-algos", "--json").document
    assert document["schema"] == "autofit.conv-algos/1"
    assert [policy["name"] for policy in document["conv_algos"]] == [
        algorithm.name for algorithm in conv.offered()
    ]


def test_gpus_puts_each_card_on_one_line_that_is_never_cut(autofit):
    lines = autofit("gpus", local_gpus=no_gpus).out.splitlines()
    for gpu in catalogue().values():
        (line,) = [line for line in lines if line.split()[:1] == [gpu.key]]
        assert f"{gpu.total_bytes:,}" in line
        assert line.rstrip().endswith(gpu.name)
        assert {gpu.architecture, str(gpu.num_sms), gpu.provenance} <= set(line.split())


def test_gpus_can_be_asked_for_those_sold_with_so_much(autofit):
    document = autofit("gpus", "--memory", "16G", "--json", local_gpus=no_gpus).document
    keys = [gpu["key"] for gpu in document["gpus"]]
    assert {"t4", "v100-16g", "rtx-4080"} <= set(keys)
    assert "rtx-3090" not in keys
    totals = [gpu["total_bytes"] for gpu in document["gpus"]]
    assert totals == sorted(totals)


def test_gpus_marks_the_card_of_this_machine(autofit):
    finished = autofit("gpus", local_gpus=lambda: (RTX_3090,))
    (marked,) = [line for line in finished.out.splitlines() if line.startswith("rtx-") and "◂" in line]
    assert marked.split()[0] == "rtx-3090"
    assert "◂ here: NVIDIA GeForce RTX 3090, 23.56 GiB, sm_86, driver 580.1" in finished.out
    document = autofit("gpus", "--json", local_gpus=lambda: (RTX_3090,)).document
    assert document["local"][0]["uuid"] == "GPU-1"


def test_gpus_names_a_local_card_that_the_catalogue_lacks(autofit):
    unknown = LocalGpu(
        name="Some Card",
        uuid="GPU-2",
        architecture="sm_99",
        total_bytes=10 * 1024**3,
        used_bytes=0,
        driver_version="1",
    )
    finished = autofit("gpus", local_gpus=lambda: (unknown,))
    assert "◂ here: Some Card, 10.00 GiB, sm_99" in finished.out
    assert finished.out.count("◂") == 1


def test_a_driver_that_does_not_answer_hides_no_catalogue(autofit):
    def broken():
        raise DriverError("the driver does not answer: reinstall it")

    finished = autofit("gpus", "--json", local_gpus=broken)
    assert finished.code == 0
    assert finished.err == "warning: the driver does not answer: reinstall it\n"
    assert len(finished.document["gpus"]) == len(catalogue())
    assert finished.document["local"] == []


@pytest.mark.parametrize("memory", ["16Q", "-1", "0"])
def test_a_memory_that_is_no_size_is_a_usage_error(autofit, memory: str):
    finished = autofit("gpus", "--memory", memory)
    assert finished.code == 2
    assert finished.err.startswith(f"error: --memory: {memory!r} is ")


def test_a_key_of_the_list_is_one_that_gpu_takes(autofit):
    for gpu in autofit("gpus", "--json", local_gpus=no_gpus).document["gpus"]:
        assert find_gpu(gpu["key"]).key == gpu["key"]
