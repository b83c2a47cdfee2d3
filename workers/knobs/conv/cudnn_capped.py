"""cuDNN restricted to plans whose workspace is within a cap."""

from __future__ import annotations

from workers.knobs.conv.policy import ConvPolicy

CAP_VARIABLE = "CUDNN_CONV_WSCAP_DBG"  # in MiB; cuDNN reads it when it is loaded
_MIB = 1024**2


def policy(cap_mib: int) -> ConvPolicy:
    """The policy with a cap of so many MiB."""
    return ConvPolicy(
        name=f"cudnn-capped:{cap_mib}",
        explanation=f"cuDNN's first choice among plans that need no more than {cap_mib} MiB of workspace",
        takes=f"the workspace of its plan, {cap_mib} MiB at the most",
        device_kinds=("cuda",),
        workspace_cap_bytes=cap_mib * _MIB,
        python_lines=(f'os.environ["{CAP_VARIABLE}"] = "{cap_mib}"  # before torch is imported',),
    )
