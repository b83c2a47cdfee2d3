"""cuDNN asked to keep its workspaces within a cap.

The release notes of cuDNN 8.0.5 say that the environment variable `CUDNN_CONV_WSCAP_DBG` limits the result of
`cudnnConvolution…GetWorkspaceSize`. PyTorch asks for plans instead, and the plans that cuDNN 9.8 and 9.20
return for an absent card are the same with and without the variable. So a prediction takes the capped
workspace as the likely one, and that of cuDNN's own choice as the high end; a measured trial sets the
variable.
"""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND

CAP_VARIABLE = "CUDNN_CONV_WSCAP_DBG"  # in MiB
_MIB = 1024**2


def policy(cap_mib: int) -> ConvPolicy:
    """Switches of cuDNN for the algorithm `cudnn-capped:N`: workspaces of at most `cap_mib` MiB."""
    return ConvPolicy(
        name=f"cudnn-capped:{cap_mib}",
        explanation=f"asks cuDNN for workspaces of at most {cap_mib} MiB, which it may not keep to",
        takes=f"the workspace of its plan, likely {cap_mib} MiB at the most, at the high end any",
        device_kinds=(GPU_KIND,),
        workspace_cap_bytes=cap_mib * _MIB,
        variables=((CAP_VARIABLE, str(cap_mib)),),
        python_lines=(f'os.environ["{CAP_VARIABLE}"] = "{cap_mib}"  # before torch is imported',),
    )
