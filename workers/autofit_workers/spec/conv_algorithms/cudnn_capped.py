"""cuDNN asked to keep its workspaces within a cap.

The variable is of cuDNN 8.0.5, whose release notes have it limit what
`cudnnConvolution…GetWorkspaceSize` returns. PyTorch asks for plans instead, and those that cuDNN 9.8
and 9.20 name for a card that is not there are the same with it and without. So a prediction takes
the cap as likely, and cuDNN's own choice as the high end; a measured trial has the variable set.
"""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy

CAP_VARIABLE = "CUDNN_CONV_WSCAP_DBG"  # in MiB
_MIB = 1024**2


def policy(cap_mib: int) -> ConvPolicy:
    """The policy with a cap of so many MiB."""
    return ConvPolicy(
        name=f"cudnn-capped:{cap_mib}",
        explanation=f"asks cuDNN for workspaces of at most {cap_mib} MiB, which it may not keep to",
        takes=f"the workspace of its plan, likely {cap_mib} MiB at the most, at the high end any",
        device_kinds=("cuda",),
        workspace_cap_bytes=cap_mib * _MIB,
        variables=((CAP_VARIABLE, str(cap_mib)),),
        python_lines=(f'os.environ["{CAP_VARIABLE}"] = "{cap_mib}"  # before torch is imported',),
    )
