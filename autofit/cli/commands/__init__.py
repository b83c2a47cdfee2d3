"""Commands of `autofit`: the module and the line of help of each, in the order that the help lists them.

The modules are imported when a command is used: to list them all, none is.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class Listed:
    """Command as the help of `autofit` lists it.

    Attributes:
        module: module within this package in which the command is, as the function of its name.
        summary: the line of the list, which is the first sentence of the command's help.
    """

    module: str
    summary: str


LISTED = {
    "tune": Listed("tune", "Find the largest batch that fits."),
    "estimate": Listed("estimate", "Predict what one configuration needs."),
    "profile": Listed("profile", "Show where the memory and the time of one configuration go."),
    "check": Listed("check", "Predict if one configuration fits."),
    "lock": Listed("locks.lock", "Lock what configurations need, to see later what grew."),
    "diff": Listed("locks.diff", "Show which lines made the memory grow."),
    "cards": Listed("cards", "Predict on which cards one configuration fits."),
    "request": Listed("for_programs.request", "Print the smallest request that fits."),
    "observe": Listed("observe", "Say what a real run needed."),
    "explain": Listed("explain", "Say why a run took the memory that it took."),
    "explain-oom": Listed("explain", "Explain an out-of-memory error."),
    "compare": Listed("compare", "Compare the tensors and outputs of several models."),
    "kv": Listed("kv", "Predict what a server has left for its KV cache."),
    "ui": Listed("ui", "Serve a page on which sizes are tried by hand."),
    "submit": Listed("submit", "Queue a tune on a Ray cluster, and print the job's id."),
    "jobs": Listed("jobs", "List the jobs of the storage, oldest first."),
    "status": Listed("jobs", "Show how far jobs, or the jobs of a fleet, are."),
    "wait": Listed("jobs", "Wait until jobs, or all jobs of a fleet, are over."),
    "result": Listed("jobs", "Print a job's answer, or a fleet's table."),
    "logs": Listed("jobs", "Print the output of a job's driver."),
    "stop": Listed("jobs", "Stop jobs, or all jobs of a fleet."),
    "serve": Listed("serve", "Serve the Prometheus metrics of a storage."),
    "models": Listed("models_gpus", "List the built-in workloads."),
    "gpus": Listed("models_gpus", "List the cards and their memory."),
    "conv-algos": Listed("conv_algos", "List the convolution algorithms."),
    "mcp": Listed("for_programs.mcp", "Serve autofit's questions to an assistant."),
    "schema": Listed("for_programs.schema", "Print the JSON Schema of a document."),
    "doctor": Listed("doctor", "Check what autofit needs on this machine."),
    "completion": Listed("completion", "Print a shell completion script."),
}


class Commands(Mapping[str, click.Command]):
    """Commands by name, each imported when it is first asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module = importlib.import_module(f"{__name__}.{LISTED[name].module}")
            self._loaded[name] = getattr(module, name.replace("-", "_"))
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in LISTED

    def __iter__(self) -> Iterator[str]:
        return iter(LISTED)

    def __len__(self) -> int:
        return len(LISTED)
