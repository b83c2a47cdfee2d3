"""Private names of PyTorch that autofit uses, each with its purpose; no other module uses private names.

Where a release of PyTorch lacks a name or has it elsewhere, the difference is handled here. A private name
whose object autofit replaces is a `PrivateName`, so that other modules can replace it without the name. Other
modules may use attributes of instances, such as a module's `_parameters`, and names of operators below
`torch.ops`.

private_name   an attribute of a module or class that autofit replaces
pytree         nested containers of tensors
operators      operators, their kernels and layouts
dispatch       modes and dispatch keys
fake_tensors   tensors without memory
tensors        how tensors are made, moved and swapped
autograd       the backward pass
data_loading   what iterates a data loader
training       optimizers, the gradient scaler, initializers
device_guards  the registry of C++ by which devices are set
cuda           the driver's device and the allocator's history
compiling      the compiler behind `torch.compile`
inductor, flex_attention, triton_kernels, process_groups, collectives, dtensors, pipelining
               imported where they are needed, as their imports cost time
"""
