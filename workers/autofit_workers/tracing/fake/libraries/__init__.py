"""Answers to what libraries ask of a GPU, where there is none: a file for each library."""
