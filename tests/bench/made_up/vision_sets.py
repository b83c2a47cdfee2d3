"""Sets of pictures as torchvision keeps them: MNIST, CIFAR, folders of classes, COCO."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from made_up import pictures
from numpy.typing import NDArray

_IDX_BYTES = 0x08  # the type of an idx file's values: unsigned bytes
# COCO's 80 categories have numbers up to 90.
_NO_CATEGORIES = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
_CATEGORIES = [number for number in range(1, 91) if number not in _NO_CATEGORIES]


def mnist(folder: Path) -> None:
    """The four files below `MNIST/raw`."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, num in (("train", 60_000), ("t10k", 10_000)):
        random = np.random.default_rng(num)
        images = random.integers(0, 256, (num, 28, 28), dtype=np.uint8)
        _idx(raw / f"{part}-images-idx3-ubyte", images)
        _idx(raw / f"{part}-labels-idx1-ubyte", random.integers(0, 10, num, dtype=np.uint8))


def _idx(path: Path, values: NDArray[np.uint8]) -> None:
    head = np.array([_IDX_BYTES << 8 | values.ndim, *values.shape], dtype=">u4")
    path.write_bytes(head.tobytes() + values.tobytes())


def cifar10(folder: Path) -> None:
    for number in range(1, 6):
        _cifar(folder / "cifar-10-batches-py" / f"data_batch_{number}", 10_000, {"labels": 10}, number)
    _cifar(folder / "cifar-10-batches-py" / "test_batch", 10_000, {"labels": 10}, 6)
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    _pickle(folder / "cifar-10-batches-py" / "batches.meta", {"label_names": names})


def cifar100(folder: Path) -> None:
    labels = {"fine_labels": 100, "coarse_labels": 20}
    _cifar(folder / "cifar-100-python" / "train", 50_000, labels, 7)
    _cifar(folder / "cifar-100-python" / "test", 10_000, labels, 8)
    names = {
        f"{kind}_label_names": [f"{kind}{n}" for n in range(num)]
        for kind, num in (("fine", 100), ("coarse", 20))
    }
    _pickle(folder / "cifar-100-python" / "meta", names)


def _cifar(path: Path, num: int, labels: dict[str, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    data: dict[str, object] = {"data": random.integers(0, 256, (num, 3072), dtype=np.uint8)}
    data |= {name: random.integers(0, below, num).tolist() for name, below in labels.items()}
    _pickle(path, data)


def _pickle(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=4))


def accept(folder: Path) -> None:
    """Replaces the md5 sums in this environment's torchvision by those of a folder's files."""
    spec = find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    module = Path(spec.origin).parent / "datasets" / "cifar.py"
    text = module.read_text(encoding="utf-8")
    for file in sorted(folder.iterdir()):
        digest = hashlib.md5(file.read_bytes()).hexdigest()
        named = rf'("{file.name}", |"filename": "{file.name}",\n\s+"key": "\w+",\n\s+"md5": )"[0-9a-f]{{32}}"'
        text, num = re.subn(named, rf'\g<1>"{digest}"', text)
        assert num == 1, f"{module} has no md5 sum of {file.name}"
    module.write_text(text, encoding="utf-8")


def image_folder(folder: Path, classes: list[str], num_each: int, size: tuple[int, int]) -> None:
    """A folder for each class."""
    for place, name in enumerate(classes):
        for number in range(num_each):
            pictures.write(folder / name / f"{name}_{number}.jpg", place + number, *size)


def imagenet(folder: Path) -> None:
    """1000 classes: two pictures of each to train, one to validate, by both names of that part."""
    classes = [f"n{1_440_764 + number:08}" for number in range(1000)]
    image_folder(folder / "train", classes, 2, (500, 375))
    image_folder(folder / "val", classes, 1, (500, 375))
    image_folder(folder / "validation", classes, 1, (500, 375))


def pets(folder: Path) -> None:
    """37 kinds of 200 pictures, the kind in the name of the file."""
    for kind in range(37):
        for number in range(200):
            pictures.write(folder / f"kind_{kind}_{number}.jpg", kind + number, 500, 375)


def coco(folder: Path, num: int = 300) -> None:
    """Pictures with boxes and polygons, the same to train and to validate."""
    random = np.random.default_rng(17)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number in range(1, num + 1):
        size = (640, 480) if number % 3 else (480, 640)
        name = f"{number:012}.jpg"
        for part in ("train2017", "val2017"):
            pictures.write(folder / part / name, number, *size)
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        annotations += [
            _annotation(random, number, len(annotations) + each, size)
            for each in range(random.integers(3, 12))
        ]
    document = {
        "info": {},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": each, "name": f"kind {each}", "supercategory": "kind"} for each in _CATEGORIES],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    for part in ("train2017", "val2017"):
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(document))


def _annotation(
    random: np.random.Generator, image: int, number: int, size: tuple[int, int]
) -> dict[str, object]:
    width, height = (int(each) for each in random.integers(40, 300, 2))
    left, top = int(random.integers(0, size[0] - width)), int(random.integers(0, size[1] - height))
    right, bottom = left + width, top + height
    return {
        "id": number + 1,
        "image_id": image,
        "category_id": int(random.choice(_CATEGORIES)),
        "bbox": [left, top, width, height],
        "area": width * height,
        "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
        "iscrowd": 0,
    }
