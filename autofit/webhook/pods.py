"""Pods that an object of Kubernetes will have, and the GPUs that each of them asks for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from autofit.hardware.gpu_names import matching
from autofit.hardware.gpus import Gpu, catalogue
from autofit.webhook.review import as_items, as_mapping

ANNOTATION = "autofit.dev/check"

_Item = TypeVar("_Item")

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
_LABELS = (*_PRODUCT_LABELS, _MEMORY_LABEL)
# What is read of an object at most. Real ones have a few of each; larger ones would keep others waiting.
_MOST_TEMPLATES, _MOST_TERMS, _MOST_VALUES, _MOST_PRODUCTS = 100, 20, 50, 50
_MOST_LABEL = 63  # characters of a label's value in Kubernetes
_IN, _ABOVE = "In", "Gt"  # operators of a node affinity
_MOST_DIGITS = 9  # of a memory in MiB
_SHARED = re.compile(r"-SHARED$")
_SLICE = re.compile(r"-MIG-(\d+g\.\d+gb)$", re.IGNORECASE)


class TooLargeError(Exception):
    """An object has more templates of pods, terms or cards than are looked at; the message says which."""


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
        """Whether the request names the card, or how much memory it has."""
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

    Raises:
        TooLargeError: the object has more templates, terms or cards than are looked at.
    """
    paths = _TEMPLATES.get(kind)
    if paths is None:
        return None
    outer, catalogued = annotated(manifest), _Catalogued()
    templates = (template for path in paths for template in _at(manifest, path))
    return tuple(
        _pod_of(as_mapping(template), outer, catalogued)
        for template in _at_most(_MOST_TEMPLATES, templates, "templates of pods")
    )


def _at_most(number: int, items: Iterable[_Item], of: str) -> Iterator[_Item]:
    """Yields the items; raises `TooLargeError` if there are more than `number`."""
    for place, item in enumerate(items):
        if place == number:
            raise TooLargeError(f"more than {number} {of} are not looked at")
        yield item


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


def _pod_of(template: Mapping[str, Any], outer: str | None, catalogued: _Catalogued) -> PodAsked:
    spec = as_mapping(template.get("spec"))
    name = annotated(template)
    return PodAsked(configuration=outer if name is None else name, gpus=tuple(_gpus_of(spec, catalogued)))


def _gpus_of(spec: Mapping[str, Any], catalogued: _Catalogued) -> Iterator[GpuAsked]:
    resources = set(_resources(spec))
    profiles = {match[1] for match in map(_MIG.fullmatch, resources) if match}
    # Resources of other names, such as `nvidia.com/gpu.shared`, are a share of a card.
    has_share = any(name.startswith(f"{_GPU}.") for name in resources)
    if not (profiles or has_share or _GPU in resources):
        return
    for required in _alternatives(spec):
        products = _products(required)
        cards, unknown = catalogued.cards(products)
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
    values = {label: selector.get(label) for label in _LABELS}
    always = [_Required(label, _IN, (value,)) for label, value in values.items() if isinstance(value, str)]
    affinity = as_mapping(as_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = as_mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    terms = _at_most(_MOST_TERMS, as_items(required.get("nodeSelectorTerms")), "terms of a node affinity")
    for term in [as_mapping(term) for term in terms] or [{}]:
        of_gpus = (_required(each) for each in as_items(term.get("matchExpressions")))
        yield [*always, *(each for each in of_gpus if each.label in _LABELS)]


class _Required(NamedTuple):
    """Requirement of a node's label: an operator such as `In`, and its values."""

    label: str
    operator: object
    values: tuple[str, ...]


def _required(expression: object) -> _Required:
    parts = as_mapping(expression)
    label = parts.get("key")
    values = _at_most(_MOST_VALUES, as_items(parts.get("values")), f"values of {label}")
    is_read = isinstance(label, str) and label in _LABELS
    kept = tuple(value for value in values if isinstance(value, str)) if is_read else ()
    return _Required(label if isinstance(label, str) else "", parts.get("operator"), kept)


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


class _Catalogued:
    """Cards of the catalogue that labels of products name, each looked up once for an object."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Gpu, ...]] = {}

    def cards(self, products: Iterable[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """Cards that labels name, and the labels that name none of the catalogue.

        A label of a cloud may name several, such as `nvidia-tesla-v100`, which comes with 16 and 32 GB.
        """
        found = {product: self._cards(product) for product in products}
        cards = dict.fromkeys(card for each in found.values() for card in each)
        return tuple(cards), tuple(product[:_MOST_LABEL] for product, each in found.items() if not each)

    def _cards(self, product: str) -> tuple[Gpu, ...]:
        if product not in self._found:
            if len(self._found) == _MOST_PRODUCTS:
                raise TooLargeError(f"more than {_MOST_PRODUCTS} names of cards are not looked at")
            self._found[product] = _looked_up(product) if len(product) <= _MOST_LABEL else ()
        return self._found[product]


def _looked_up(product: str) -> tuple[Gpu, ...]:
    plain = _SHARED.sub("", product)
    profile = _SLICE.search(plain)
    wholes = tuple(matching(_SLICE.sub("", plain), catalogue().values()))
    if profile is None or not wholes:
        return wholes
    return _slices(wholes, {profile[1].lower()})


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
