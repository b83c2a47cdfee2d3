"""Pods that an object of Kubernetes will have, and the GPUs that each of them asks for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autofit.hardware.gpu_names import matching
from autofit.hardware.gpus import Gpu, catalogue
from autofit.webhook.review import as_items, as_mapping

ANNOTATION = "autofit.dev/check"

_ALL = "*"  # each item of an array, or each value of an object
_POD = ("spec", "template")
_RAY_GROUPS = (("headGroupSpec", "template"), ("workerGroupSpecs", _ALL, "template"))
# Where the templates of pods lie in each kind of object.
_TEMPLATES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Pod": ((),),
    **dict.fromkeys(("Job", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), (_POD,)),
    "CronJob": (("spec", "jobTemplate", *_POD),),
    "JobSet": (("spec", "replicatedJobs", _ALL, "template", *_POD),),
    "PyTorchJob": (("spec", "pytorchReplicaSpecs", _ALL, "template"),),
    "RayCluster": tuple(("spec", *path) for path in _RAY_GROUPS),
    "RayJob": tuple(("spec", "rayClusterSpec", *path) for path in _RAY_GROUPS),
    "RayService": tuple(("spec", "rayClusterConfig", *path) for path in _RAY_GROUPS),
    "Workload": (("spec", "podSets", _ALL, "template"),),  # Kueue's
}

_GPU = "nvidia.com/gpu"
_MIG = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)")
# Labels of NVIDIA's GPU feature discovery, and of the clouds.
_PRODUCT_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_MEMORY_LABEL = "nvidia.com/gpu.memory"  # in MiB, as nvidia-smi shows it
_IN, _ABOVE = "In", "Gt"  # operators of a node affinity
_MOST_DIGITS = 9  # of a memory in MiB
_SHARED = re.compile(r"-SHARED$")
_SLICE = re.compile(r"-MIG-(\d+g\.\d+gb)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAsked:
    """GPU that a pod may be given.

    Attributes:
        cards: cards of the catalogue, of which it is any; empty where only its memory is asked for.
        memory_mib: memory by nvidia-smi that it has at least; None where it is not asked for.
        unknown: names of cards, of which it may be any, that are not in the catalogue.
        is_shared: whether other pods may use it at the same time.
    """

    cards: tuple[Gpu, ...] = ()
    memory_mib: int | None = None
    unknown: tuple[str, ...] = ()
    is_shared: bool = False

    @property
    def is_named(self) -> bool:
        """Whether it is known which card it is, or how much memory it has."""
        return bool(self.cards or self.unknown) or self.memory_mib is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAsked:
    """Pod that is to be created.

    Attributes:
        configuration: name that the annotation `autofit.dev/check` gives; None without it.
        gpus: GPUs of which it may be given any: one for each term of its node affinity, which are
            alternatives; empty if it asks for none.
    """

    configuration: str | None
    gpus: tuple[GpuAsked, ...] = ()


def pods_of(kind: str, manifest: Mapping[str, Any]) -> tuple[PodAsked, ...] | None:
    """Pods that an object will have, one for each template.

    An annotation of the object holds for all of its pods that ask for a GPU; one of a pod's template goes
    before it.

    Args:
        kind: kind of the object.
        manifest: the object.

    Returns:
        The pods; None if the kind is not known.
    """
    paths = _TEMPLATES.get(kind)
    if paths is None:
        return None
    outer = annotated(manifest)
    templates = (template for path in paths for template in _at(manifest, path))
    return tuple(_pod_of(as_mapping(template), outer) for template in templates)


def annotated(manifest: Mapping[str, Any]) -> str | None:
    """Configuration that an object's own annotation names; None without one."""
    annotations = as_mapping(as_mapping(manifest.get("metadata")).get("annotations"))
    name = annotations.get(ANNOTATION)
    return name if isinstance(name, str) else None


def _at(value: object, path: tuple[str, ...]) -> Iterator[object]:
    """Yields what lies at a path in a document; nothing where the path ends early."""
    if not path:
        yield value
        return
    first, rest = path[0], path[1:]
    if first != _ALL:
        inner = as_mapping(value).get(first)
        if inner is not None:
            yield from _at(inner, rest)
        return
    for each in as_mapping(value).values() if isinstance(value, dict) else as_items(value):
        yield from _at(each, rest)


def _pod_of(template: Mapping[str, Any], outer: str | None) -> PodAsked:
    spec = as_mapping(template.get("spec"))
    name = annotated(template)
    return PodAsked(configuration=outer if name is None else name, gpus=tuple(_gpus_of(spec)))


def _gpus_of(spec: Mapping[str, Any]) -> Iterator[GpuAsked]:
    resources = set(_resources(spec))
    profiles = {match[1] for match in map(_MIG.fullmatch, resources) if match}
    # Resources of other names, such as `nvidia.com/gpu.shared`, are a share of a card.
    has_share = any(name.startswith(f"{_GPU}.") for name in resources)
    if not (profiles or has_share or _GPU in resources):
        return
    for required in _alternatives(spec):
        products = _products(required)
        cards, unknown = _cards(products)
        if profiles:
            cards, unknown = _slices(cards, profiles), (*unknown, *_unknown_profiles(profiles))
        yield GpuAsked(
            cards=cards,
            memory_mib=_least_memory(required),
            unknown=unknown,
            is_shared=has_share or any(_SHARED.search(product) for product in products),
        )


def _resources(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the resources of which a pod's containers ask for some."""
    for key in ("containers", "initContainers"):
        for container in as_items(spec.get(key)):
            resources = as_mapping(as_mapping(container).get("resources"))
            for bound in ("limits", "requests"):
                amounts = as_mapping(resources.get(bound))
                yield from (name for name, amount in amounts.items() if str(amount) not in ("0", ""))


def _alternatives(spec: Mapping[str, Any]) -> Iterator[list[_Required]]:
    """Yields what a node's labels must be, once for each term of the pod's affinity: one term suffices."""
    selector = as_mapping(spec.get("nodeSelector"))
    always = [_Required(label, _IN, (value,)) for label, value in selector.items() if isinstance(value, str)]
    affinity = as_mapping(as_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = as_mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    terms = [as_mapping(term) for term in as_items(required.get("nodeSelectorTerms"))]
    for term in terms or [{}]:
        yield [*always, *map(_required, as_items(term.get("matchExpressions")))]


class _Required(NamedTuple):
    """Requirement of a node's label: an operator such as `In`, and its values."""

    label: object
    operator: object
    values: tuple[str, ...]


def _required(expression: object) -> _Required:
    parts = as_mapping(expression)
    values = tuple(value for value in as_items(parts.get("values")) if isinstance(value, str))
    return _Required(parts.get("key"), parts.get("operator"), values)


def _products(required: Iterable[_Required]) -> list[str]:
    """Names of cards that all requirements allow; empty where none is required."""
    allowed = [each.values for each in required if each.label in _PRODUCT_LABELS and each.operator == _IN]
    return [name for name in allowed[0] if all(name in names for names in allowed)] if allowed else []


def _least_memory(required: Iterable[_Required]) -> int | None:
    """Memory in MiB that the node's cards have at least; None if any may do."""
    least = []
    for each in required:
        values = [value for value in map(_whole, each.values) if value is not None]
        if each.label == _MEMORY_LABEL and values and each.operator in (_IN, _ABOVE):
            least.append(min(values) + (each.operator == _ABOVE))
    return max(least, default=None)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _cards(products: Iterable[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Cards that labels of products name, and the labels that name none of the catalogue.

    A label of a cloud may name several, such as `nvidia-tesla-v100`, which comes with 16 and 32 GB.
    """
    cards: list[Gpu] = []
    unknown = []
    for product in products:
        plain = _SHARED.sub("", product)
        profile = _SLICE.search(plain)
        wholes = tuple(matching(_SLICE.sub("", plain), catalogue().values()))
        found = wholes if profile is None else _slices(wholes, {profile[1].lower()}) if wholes else ()
        cards.extend(found)
        if not found:
            unknown.append(product)
    return tuple(dict.fromkeys(cards)), tuple(unknown)


def _slices(cards: Sequence[Gpu], profiles: Collection[str]) -> tuple[Gpu, ...]:
    """MIG slices of some profiles, such as `1g.10gb`: of all cards of the catalogue if none is given."""
    wholes = {gpu.whole_card_key for gpu in cards}
    return tuple(
        gpu
        for gpu in catalogue().values()
        if gpu.is_mig_slice and _profile(gpu) in profiles and (not wholes or gpu.whole_card_key in wholes)
    )


def _unknown_profiles(profiles: Collection[str]) -> list[str]:
    known = {_profile(gpu) for gpu in catalogue().values()}
    return sorted(set(profiles) - known)


def _profile(gpu: Gpu) -> str:
    return gpu.key.partition("-mig-")[2]
