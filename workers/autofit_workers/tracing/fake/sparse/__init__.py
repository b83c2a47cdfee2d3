"""Fake GPU tensors of sparse layouts, and the memory that operators on them allocate.

tensors.py makes sparse tensors from indices and values; coordinates.py (COO), compressed.py (CSR, CSC, BSR,
BSC), conversions.py, products.py and softmax.py have the operators, which allocate what ATen's CUDA code
does; buffers.py allocates buffers of cuSPARSE and Thrust; running.py finds the function for an operator.
Source files named here are in aten/src/ATen/native/sparse of PyTorch, unless said otherwise.
"""
