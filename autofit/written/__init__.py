"""Writes a found setting into the configuration files of trainers and launchers.

    setting.py     what is written: batch size, knobs, ranks, script
    told.py        keys and values of a tool's file, and what the tool has no key for
    formats/       a file a tool, and the list of all of them
    files/         kinds of files: how one is read, merged and laid out
    writing.py     from `--write FORMAT=FILE` to files on disk

A file that exists keeps its other keys, their order and its comments.
"""
