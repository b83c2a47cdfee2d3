"""Which plan cuDNN takes for a convolution and what memory it wants."""
