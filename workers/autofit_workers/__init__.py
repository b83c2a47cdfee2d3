"""Everything that knows how a training step runs; no module here imports `autofit`.

    spec/      what is said of a trial, and what comes back        ┐
    process/   processes: started, told, restricted, ended         │ the standard library suffices
    replay/    a trace becomes bytes and seconds                   ┘
    workload/  conv/  apply/  scripts/    what runs, and how settings are applied to it    ┐ import torch
    tracing/   a step on a GPU that is not there                                           ┘
    trials/    one spec in, one outcome out: torch in child processes alone

Each part imports those above it, never one below.
"""
