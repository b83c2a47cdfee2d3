"""Lets libraries that ask for a GPU run on the fake one, a file for each library."""
