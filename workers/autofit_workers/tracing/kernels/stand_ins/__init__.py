"""Stand-ins for libraries that cannot be installed without a GPU or its compiler.

    finder.py        lets Python import a module here in place of a package that is not installed
    asking.py        offers FlashAttention's stand-ins when transformers or a knob asks for its attention
    flash_attn2*.py  flash-attn          ┐ the library's functions, which call operators of the library's
    flash_attn3.py   flash-attn-3        ┘ names; `tracing.kernels` has their outputs and scratch memory

    selective_scan.py, causal_conv1d.py      compiled modules of mamba-ssm and causal-conv1d
    fbd_cuda.py      extension that peft compiles for BOFT: see `autofit_workers.tracing.kernels.extensions`
    triton_*.py      Triton, whose kernels do nothing: see `autofit_workers.tracing.kernels.triton`

An installed library is used itself.
"""
