"""How process groups are made and found."""

from __future__ import annotations

from typing import Any

from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore  # whose import registers the backend `fake`

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "DEFAULT_TIMEOUT",
    "NEW_PROCESS_GROUP",
    "FakeStore",
]

_c10d: Any = distributed_c10d
# Makes a process group of a backend; replaced to make one that exchanges nothing.
NEW_PROCESS_GROUP = PrivateName(_c10d, "_new_process_group_helper")
# Function from a backend to its timeout, which a backend without communicators does not have.
DEFAULT_TIMEOUT = PrivateName(_c10d, "_get_default_timeout")
