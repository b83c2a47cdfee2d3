"""Runs `torch.distributed` code as one rank on the fake device, without the other processes.

`group` is the process group, whose collectives move nothing; `collectives` has what collectives allocate;
`dtensors` lets tensors that are spread over ranks hold fake ones.
"""
