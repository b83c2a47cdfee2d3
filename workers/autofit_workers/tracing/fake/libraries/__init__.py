"""What libraries ask of a GPU, answered where there is none: a file for each."""
