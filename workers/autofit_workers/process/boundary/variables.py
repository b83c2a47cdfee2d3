"""Environment variables of a predicted workload: those of its command without tokens, passwords and keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from autofit_workers.spec.shown import has_secret

LISTENER = (
    "_AUTOFIT_LISTENER"  # for rank 0 of a measured trial, the descriptor of the socket where ranks meet
)

# Words of a variable's name, separated by underscores. `PWD` is the current folder, not a password.
_SECRET_WORDS = frozenset(
    {
        "APIKEY",
        "AUTH",
        "COOKIE",
        "CREDENTIAL",
        "CREDENTIALS",
        "CREDS",
        "KEY",
        "PASS",
        "PASSPHRASE",
        "PASSWD",
        "PASSWORD",
        "PAT",
        "PRIVATE",
        "SECRET",
        "SECRETS",
        "TOKEN",
    }
)
_SECRET_ENDS = ("PASSWORD", "PASSWD", "PASSFILE", "TOKEN", "SECRET", "APIKEY")
# Names of variables that hold a secret or lead to it, though the name does not show it.
_SECRET_NAMES = frozenset(
    {
        "AUTOFIT_STORAGE",
        "AWS_CONFIG_FILE",
        "AWS_PROFILE",
        "DOCKER_CONFIG",
        "GNUPGHOME",
        "GPG_AGENT_INFO",
        "KRB5CCNAME",
        "KUBECONFIG",
        "NETRC",
        "PGSERVICEFILE",
        "RAY_AUTH_MODE",
        "SSH_AGENT_PID",
    }
)
# Variables that keep libraries from asking a hub, and from waiting for an answer that cannot come.
HUBS_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_NO_SECRET = re.compile(r"\s*(?:-?[\d.]{1,12}|true|false|yes|no|on|off|none|)\s*", re.IGNORECASE)


def public(variables: Mapping[str, str], kept: Collection[str] = ()) -> dict[str, str]:
    """Environment variables without those that hold a secret, except for the names in `kept`."""
    return {name: value for name, value in variables.items() if name in kept or not is_secret(name, value)}


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a token, a password or a key, by its name or as a URL with a password."""
    if _NO_SECRET.fullmatch(value):
        return False
    upper = name.upper()
    words = re.split(r"[^A-Z0-9]+", upper)
    return (
        upper in _SECRET_NAMES
        or not _SECRET_WORDS.isdisjoint(words)
        or upper.endswith(_SECRET_ENDS)
        or has_secret(value)
    )
