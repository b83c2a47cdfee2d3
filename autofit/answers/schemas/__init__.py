"""JSON Schemas of the documents that commands print, read from the classes that the documents are made of.

names           names of the documents that a list of the command line makes
documents       the table of all documents: the class of each, and the keys that it has besides
json_schema     a class with its docstring becomes a JSON Schema
"""
