"""Plans that cuDNN takes for convolutions, and the workspaces they need."""
