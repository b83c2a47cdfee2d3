"""Lets libraries that need a GPU run on the fake one, with a file for each library."""
