"""`torch.distributed` without other processes: one rank of any number of them, on the fake device.

`group` is the process group, whose collectives move nothing; `collectives` has what collectives allocate;
`dtensors` lets tensors that are spread over ranks hold fake ones.
"""
