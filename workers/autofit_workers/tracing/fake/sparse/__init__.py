"""Fake GPU tensors of sparse layouts, and the memory that operators on them allocate.

tensors.py makes them of their parts; coordinates.py (COO), compressed.py (CSR, CSC, BSR, BSC),
conversions.py, products.py and softmax.py repeat what ATen's CUDA code allocates; buffers.py has what
libraries take; running.py finds the function of an operator. The files that are named are in
aten/src/ATen/native/sparse of PyTorch, unless said otherwise.
"""
