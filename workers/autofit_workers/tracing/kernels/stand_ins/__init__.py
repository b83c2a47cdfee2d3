"""Stand-ins for libraries that cannot be installed without a GPU or its compiler.

    finder.py        lets Python find a package that is not installed, with what is here in its place
    asking.py        offers one to transformers, when that asks for its attention
    flash_attn2*.py  flash-attn          ┐ the functions that are called, on operators of the library's names;
    flash_attn3.py   flash-attn-3        ┘ what these return and take is beside this folder

    selective_scan.py, causal_conv1d.py      compiled modules of mamba-ssm and causal-conv1d
    triton_*.py      Triton, whose kernels do nothing: see `autofit_workers.tracing.kernels.triton`

A library that is installed is used itself.
"""
