"""Checks the licences of autofit's dependencies against a list: `python tests/licences.py`.

Reads the metadata of the environment that it runs in, from autofit, with PostgreSQL's driver, down through
all that is required at run time; and of plotly, of which the wheel holds a file. Prints a line for each
licence and exits with 1 where a distribution's licence is not in the list.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections import defaultdict
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Under these, in the words of SPDX, a program may use a library whatever its own licence is.
ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
        "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
        "LGPL-3.0-only",  # psycopg, which is imported as it is
    }
)  # fmt: skip
# What stands where no expression of SPDX does.
_MEANING = {
    "apache 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
}
_ROOT = "autofit-gpu[postgres]"
_IN_THE_WHEEL = "plotly"
_LONGEST_NAME = 80  # what is longer is a licence's text


def main() -> int:
    by_licence: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*required(_ROOT), _IN_THE_WHEEL}):
        by_licence[licence_of(importlib.metadata.metadata(name))].append(name)
    unlisted = {licence: names for licence, names in by_licence.items() if not is_allowed(licence)}
    for licence, names in sorted(by_licence.items()):
        print(f"{licence or 'none stated'}: {', '.join(names)}")
    for licence, names in unlisted.items():
        print(
            f"not in the list of tests/licences.py: {licence or 'none stated'}, of {', '.join(names)}",
            file=sys.stderr,
        )
    return 1 if unlisted else 0


def required(root: str) -> Iterator[str]:
    """Installed distributions that `root` requires, directly or not, itself included."""
    extras_of: dict[str, set[str]] = {}
    waiting = [Requirement(root)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        extras = {"", *wanted.extras}
        if extras <= extras_of.get(name, set()):
            continue
        try:
            needs = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        extras_of.setdefault(name, set()).update(extras)
        waiting += [
            need
            for need in map(Requirement, needs)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return iter(extras_of)


def licence_of(metadata: importlib.metadata.PackageMetadata) -> str:
    """SPDX expression of a licence: as stated, else from its name, else from the classifiers."""
    if stated := metadata.get("License-Expression"):
        return stated
    name = metadata.get("License") or ""
    if not name or len(name) > _LONGEST_NAME or "\n" in name:
        kinds = [each for each in metadata.get_all("Classifier") or () if each.startswith("License ::")]
        name = kinds[0].rpartition(" :: ")[2] if kinds else ""
    return _MEANING.get(name.lower(), name)


def is_allowed(licence: str) -> bool:
    """Whether a licence is in the list: all parts of `A AND B`, and one of `A OR B`."""
    return any(
        all(part.strip("() ") in ALLOWED for part in re.split(r"\bAND\b", choice))
        for choice in re.split(r"\bOR\b", licence)
    )


if __name__ == "__main__":
    sys.exit(main())
