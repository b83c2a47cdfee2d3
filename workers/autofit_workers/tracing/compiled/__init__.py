"""Steps that `torch.compile` compiles, traced on the fake GPU.

PyTorch's own Dynamo, AOTAutograd and Inductor run as they are, for the fake GPU. Inductor generates Python
code for each graph, the wrapper, which allocates the graph's buffers, calls kernels and deletes buffers. The
wrapper is run on fake tensors, so its allocations and frees are those of the compiled step. Its kernels are
objects that do nothing; none is compiled, and Triton need not be installed.

    entry        `torch.compile` for programs that are traced: compiles, and falls back to eager code
    lowering     makes PyTorch's compiler run for the fake GPU
    devices      answers C++ and the compiler's own modes about the device of a fake tensor
    wrapper      functions and kernels that generated wrappers call
    provenance   lines and modules of the user's code behind each line of a wrapper
"""
