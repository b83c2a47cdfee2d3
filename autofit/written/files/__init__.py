"""Kinds of configuration files: how one is read, and how values are merged into it.

    kind.py            what a kind of files does
    mappings.py        values merged into a mapping, for JSON and YAML
    json_file.py, yaml_file.py
    lines.py           a `KEY=value` or an option a line
    command.py         a command line in a shell script
    python_call.py     keyword arguments of a call in a Python file

A file that cannot be merged into raises `ValueError` with what is wrong with it.
"""
