"""Runs `torch.distributed` code as one rank on the fake device, without the other processes.

`group` makes the fake process group, whose collectives move no data; `collectives` allocates what collectives
do; `dtensors` lets `DTensor`s hold fake tensors; `pipelines` lets pipeline stages exchange tensors.
"""
