"""Text of an out-of-memory error, out of a whole log: what it says, and what that means.

wordings       the forms that PyTorch and the libraries below it give such an error, with their sources
reader         a log becomes the errors in it: sizes, device, rank, processes
diagnosis      sizes of one error become a cause
"""
