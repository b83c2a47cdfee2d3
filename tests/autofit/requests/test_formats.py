"""Requests: each is read as its scheduler reads it, and gives cards alone on which the step fits."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from autofit.answers.configuration.request import request_text
from autofit.hardware.gpus import Gpu, catalogue
from autofit.questions.check import Answer
from autofit.requests.answer import RequestAnswer, format_named, smallest_request
from autofit.requests.formats import FORMATS, dstack, skypilot
from autofit.requests.formats.kubernetes import product_of
from autofit.requests.formats.slurm import type_of
from tests.autofit.requests.answers import GIB, needing
from tests.deploy.kubernetes import CRD_FOLDER, schema

MIB = 1024**2


def requested(name: str, gib: float, *keys: str, num_nodes: int = 1, **changes: Any) -> RequestAnswer:
    found = needing(gib, *keys, **changes)
    return smallest_request(found, format_named(name), names_cards=bool(keys), num_nodes=num_nodes)


def values(answer: RequestAnswer) -> Any:
    """Content of a request in YAML, read from the text that is printed."""
    return yaml.safe_load(request_text(answer))


def fits(gpu: Gpu, gib: float) -> bool:
    (row,) = needing(gib, gpu.key).cards
    return row.verdict is Answer.FITS


def sbatch_options(text: str) -> dict[str, str]:
    """Options of a batch script, as sbatch takes them from its lines."""
    return dict(re.findall(r"^#SBATCH (--[a-z-]+)=(\S+)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("gib", [0.5, 8, 30, 100])
def test_every_card_of_a_request_holds_the_step(form, gib):
    answer = requested(form.name, gib)
    assert answer.request is not None
    assert answer.cards
    for card in answer.cards:
        assert form.gives(catalogue()[card.gpu])
        assert fits(catalogue()[card.gpu], gib)
        assert answer.memory_bytes is None or answer.memory_bytes <= catalogue()[card.gpu].sold_gb * GIB


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_nothing_is_asked_for_that_does_not_fit(form):
    answer = requested(form.name, 300)
    assert (answer.request, answer.values, answer.cards) == (None, None, ())
    assert answer.verdict is Answer.DOES_NOT_FIT
    assert "300.00 GiB" in answer.reason
    assert "--gpus 1,2,4,8" in answer.reason


def test_slurm_gets_the_smallest_type_and_features_for_the_others():
    answer = requested("slurm", 20, "a100-40g", "l4", "t4")
    text = request_text(answer)
    assert sbatch_options(text) == {"--gres": "gpu:nvidia_l4:1"}
    either = (
        text.replace("# SBATCH", "#SBATCH").replace('"', "").replace("#SBATCH --gres=gpu:nvidia_l4:1", "")
    )
    assert sbatch_options(either) == {"--gres": "gpu:1", "--constraint": "nvidia_l4|nvidia_a100-sxm4-40gb"}


def test_slurm_gets_the_gpus_of_each_node():
    answer = requested("slurm", 20, "l4", num_gpus=8, num_nodes=2)
    assert sbatch_options(request_text(answer)) == {"--nodes": "2", "--gres": "gpu:nvidia_l4:4"}


def test_a_batch_script_with_the_request_runs(tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n" + request_text(requested("slurm", 4)) + "echo ran\n")
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"


def test_types_of_slurm_need_no_quoting():
    assert all(re.fullmatch(r"[a-z0-9_.()/-]+", type_of(gpu)) for gpu in catalogue().values())


def admitted_by(pod: Any) -> list[Gpu]:
    """Cards whose nodes a pod's affinity admits, whatever a node's label says of the memory."""
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = terms["nodeSelectorTerms"]
    found = []
    for gpu in catalogue().values():
        if gpu.is_mig_slice or not gpu.vendor.facts.has_capability:
            continue
        labels = {
            "nvidia.com/gpu.memory": max(gpu.sold_gb * 1024, gpu.total_bytes // MIB),
            "nvidia.com/gpu.compute.major": int(gpu.architecture.removeprefix("sm_")) // 10,
            "nvidia.com/gpu.product": product_of(gpu),
        }
        if all(
            int(labels[each["key"]]) > int(each["values"][0])
            if each["operator"] == "Gt"
            else labels[each["key"]] in each["values"]
            for each in term["matchExpressions"]
        ):
            found.append(gpu)
    return found


@pytest.mark.parametrize("gib", [3, 9, 14, 20, 21.5, 45, 70])
def test_kubernetes_admits_no_node_on_whose_card_it_does_not_fit(gib):
    answer = requested("kubernetes", gib)
    pod = answer.values if "affinity" in answer.values["spec"] else answer.values["or"]
    admitted = admitted_by(pod)
    assert admitted
    assert all(fits(gpu, gib) for gpu in admitted)


def test_kubernetes_leaves_out_old_cards_that_need_more():
    is_old = lambda gpu: gpu.architecture in ("sm_60", "sm_61")  # noqa: E731
    answer = requested("kubernetes", 10, more_on=lambda gpu: 3.0 if is_old(gpu) else 1.0)
    pod = answer.values if "affinity" in answer.values["spec"] else answer.values["or"]
    admitted = admitted_by(pod)
    assert min(gpu.total_bytes for gpu in admitted) < 16 * GIB
    assert not any(map(is_old, admitted))


def test_kubernetes_takes_the_named_products_alone():
    pod = requested("kubernetes", 20, "a100-40g", "rtx-4090").values
    assert {gpu.key for gpu in admitted_by(pod)} == {"a100-40g", "rtx-4090"}


def test_a_slice_is_asked_for_where_it_suffices():
    answer = requested("kubernetes", 7, "a100-80g-mig-1g.10gb", "h100-80g-mig-1g.10gb", "a100-80g")
    (container,) = values(answer)["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
    assert "# " + "kind: Pod" in request_text(answer)  # the whole card's, for clusters without slices
    # Of one profile only one card's slice holds it: the profile may mean the other.
    slices = ("a100-80g-mig-1g.10gb", "h100-80g-mig-1g.10gb")
    small, large = (row.usable_bytes for row in needing(1, *slices).cards)
    tight = needing((small + large) / 2 / GIB, *slices)
    assert [row.verdict is Answer.FITS for row in tight.cards] == [False, True]
    assert smallest_request(tight, FORMATS["kubernetes"], names_cards=True).request is None


def test_several_ranks_get_no_slices():
    answer = requested("kubernetes", 7, "a100-80g-mig-1g.10gb", "a100-80g", num_gpus=4)
    (container,) = values(answer)["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}


@pytest.mark.skipif(not CRD_FOLDER.is_dir(), reason="KubeRay's definitions are not here")
@pytest.mark.parametrize("name", ["kubernetes", "kai"])
@pytest.mark.parametrize("keys", [(), ("t4", "l4", "a100-80g-mig-1g.10gb")])
def test_pods_are_as_the_published_schema_of_pods_says(name, keys):
    answer = requested(name, 7, *keys, num_gpus=1)
    (head,) = [schema("RayCluster", "v1")["properties"]["spec"]["properties"]["headGroupSpec"]]
    of_pods = head["properties"]["template"]["properties"]["spec"]
    pods = [values(answer)]
    if "or" in answer.values:
        pods.append(answer.values["or"])
    for pod in pods:
        assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
        jsonschema.Draft202012Validator(of_pods).validate(pod["spec"])
        assert all(isinstance(each, str) for each in pod["metadata"].get("annotations", {}).values())


def test_kubernetes_own_client_reads_the_pods():
    kubernetes = pytest.importorskip("kubernetes", reason="the package kubernetes is not installed")
    for name in ("kubernetes", "kai"):
        body = values(requested(name, 7, "t4", "l4"))

        client = kubernetes.client.ApiClient()
        pod = client.deserialize(json.dumps(body), "V1Pod", "application/json")
        assert client.sanitize_for_serialization(pod) == body


def test_kai_is_asked_for_the_least_memory_in_whole_mib():
    answer = requested("kai", 9, "l4", "a100-40g")
    mib = int(values(answer)["metadata"]["annotations"]["gpu-memory"])
    assert answer.memory_bytes == mib * MIB
    least = max(card.least_total_bytes for card in answer.cards)
    assert least <= mib * MIB < least + MIB
    assert "nvidia.com/gpu" not in str(values(answer)["spec"]["containers"])


def test_kai_is_asked_for_what_the_neediest_card_that_may_be_given_needs():
    more = lambda gpu: 1.5 if gpu.key == "a100-40g" else 1.0  # noqa: E731
    answer = requested("kai", 9, "l4", "a100-40g", more_on=more)
    assert answer.memory_bytes > 13.5 * GIB
    of_ranks = requested("kai", 9, "l4", num_gpus=4)
    assert values(of_ranks)["metadata"]["annotations"]["gpu-fraction-num-devices"] == "4"


def test_a_card_that_may_not_do_is_named():
    found = needing(9, "l4", "a100-40g", more_on=lambda gpu: 9.0 if gpu.key == "a100-40g" else 1.0)
    answer = smallest_request(found, FORMATS["runai"], names_cards=True)
    assert [card.gpu for card in answer.cards] == ["l4"]
    assert any("a100-40g" in note for note in answer.notes)


def test_runai_gets_whole_megabytes_and_of_several_gpus_whole_ones():
    answer = requested("runai", 9, "l4")
    flags = re.search(r"--gpu-devices-request (\d+) --gpu-memory-request (\d+)M$", answer.request.strip())
    assert flags is not None
    assert flags[1] == "1"
    (card,) = answer.cards
    assert card.least_total_bytes <= int(flags[2]) * 10**6 < card.least_total_bytes + 10**6
    assert answer.values["spec"]["compute"]["gpuMemoryRequest"] == f"{flags[2]}M"
    assert "--gpu-memory-request" not in requested("runai", 9, "l4", num_gpus=2).request


def test_ray_takes_the_options_and_the_bundles():
    pytest.importorskip("ray")
    from ray._common.ray_option_utils import validate_task_options
    from ray.util.placement_group import validate_placement_group

    answer = requested("ray", 9, "l4", "t4")
    validate_task_options(answer.values["options"], in_options=False)
    validate_placement_group(bundles=answer.values["bundles"], strategy=answer.values["strategy"])
    compile(request_text(answer), "request", "exec")
    several = requested("ray", 20, "a100-80g", num_gpus=8, num_nodes=2)
    validate_placement_group(bundles=several.values["bundles"], strategy=several.values["strategy"])
    made: list[Any] = []
    code = several.request.replace("from ray.util.placement_group import placement_group", "")
    exec(code, {"placement_group": lambda *bundles, strategy: made.append((*bundles, strategy))})
    assert made == [(several.values["bundles"], "PACK")]


def test_ray_is_given_names_that_it_has():
    accelerators = pytest.importorskip("ray.util.accelerators")
    known = {value for name, value in vars(accelerators).items() if name.startswith(("NVIDIA", "AMD"))}
    for key, name in (("t4", "T4"), ("l4", "L4"), ("v100-16g", "V100"), ("a10g", "A10G")):
        answer = requested("ray", 4, key)
        assert answer.values["options"]["accelerator_type"] == name
        assert name in known


def test_a_name_that_may_mean_a_smaller_card_is_not_asked_for():
    assert requested("ray", 25, "v100-32g").request is None  # Ray's V100 may have 16 GB
    assert requested("ray", 10, "v100-32g").request is None  # nobody said that those with 16 GB are meant
    assert requested("ray", 10, "v100-32g", "v100-16g").values["options"]["accelerator_type"] == "V100"
    assert requested("ray", 50, "a100-80g").values["options"]["accelerator_type"] == "A100-80G"
    refused = requested("ray", 25, "v100-32g")
    assert "Ray cannot be asked" in refused.reason
    assert refused.verdict is Answer.DOES_NOT_FIT


def test_skypilot_reads_the_choice_with_its_costs():
    found = needing(9, "l4", "a100-40g", "t4", num_gpus=2)
    rows = tuple(
        dataclasses.replace(row, price=price)
        for row, price in zip(found.cards, (0.7, 3.67, 0.35), strict=True)
    )
    found = dataclasses.replace(found, cards=rows)
    answer = smallest_request(found, FORMATS["skypilot"], names_cards=True)
    assert values(answer)["resources"]["any_of"] == [
        {"accelerators": "T4:2", "max_hourly_cost": 0.7},
        {"accelerators": "L4:2", "max_hourly_cost": 1.4},
        {"accelerators": "A100:2", "max_hourly_cost": 7.34},
    ]


def test_skypilots_schema_takes_the_requests():
    schemas = pytest.importorskip("sky.utils.schemas", reason="the package skypilot is not installed")
    for gib, gpus, nodes in ((9, 1, 1), (30, 2, 1), (30, 16, 2)):
        task = values(requested("skypilot", gib, num_gpus=gpus, num_nodes=nodes))
        jsonschema.validate(task, schemas.get_task_schema())
        jsonschema.validate(task["resources"], schemas.get_resources_schema())


def test_skypilot_itself_makes_a_task_of_the_request():
    sky = pytest.importorskip("sky", reason="the package skypilot is not installed")
    answer = requested("skypilot", 30, num_gpus=8)
    task = sky.Task.from_yaml_config(values(answer))
    asked = {name: count for each in task.resources for name, count in each.accelerators.items()}
    assert asked == {
        each["accelerators"].rpartition(":")[0]: 8 for each in answer.values["resources"]["any_of"]
    }


def test_dstack_reads_the_memory_and_the_names():
    models = pytest.importorskip(
        "dstack._internal.core.models.configurations", reason="the package dstack is not installed"
    )
    body = values(requested("dstack", 18, num_gpus=2, num_nodes=1))
    task = models.TaskConfiguration(**body, commands=["python train.py"])
    assert task.resources.gpu.count.min == task.resources.gpu.count.max == 2
    assert (task.resources.gpu.memory.min, task.resources.gpu.memory.max) == (20, None)
    named = values(requested("dstack", 18, "l4", "a100-40g"))
    task = models.TaskConfiguration(**named, commands=["python train.py"])
    assert task.resources.gpu.name == ["L4", "A100"]


def test_dstack_knows_the_names_with_their_memory():
    hunt = pytest.importorskip("gpuhunt._internal.constraints", reason="the package dstack is not installed")
    known = {(each.name, each.memory) for each in hunt.KNOWN_NVIDIA_GPUS}
    assert {(name, catalogue()[key].sold_gb) for key, name in dstack.NAMES.items()} <= known


@pytest.mark.parametrize("gib", [3, 9, 14, 20, 21.5, 45, 70])
def test_dstack_admits_no_card_on_which_it_does_not_fit(gib):
    gpu = values(requested("dstack", gib))["resources"]["gpu"]
    least, major = int(gpu["memory"].removesuffix("GB..")), float(gpu.get("compute_capability", 0))
    for each in catalogue().values():
        if each.vendor.facts.has_capability and not each.is_mig_slice and each.sold_gb >= least:
            assert int(each.architecture.removeprefix("sm_")) / 10 < major or fits(each, gib), each.key


def test_tables_of_names_are_of_the_catalogue():
    assert {*skypilot.NAMES, *dstack.NAMES} <= set(catalogue())
    assert len(set(skypilot.NAMES.values())) == len(skypilot.NAMES)


def test_no_format_imports_what_it_writes_for():
    code = "import sys, autofit.requests.formats; print({'ray', 'sky', 'kubernetes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
