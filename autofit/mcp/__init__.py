"""Serves autofit's questions as tools of the Model Context Protocol, for assistants that write training code.

    tool        a tool: its name, schemas, and how its arguments become a command line
    calls       runs a command of autofit in a process of its own: progress, the document, cancellation
    server      the official SDK's server on stdin and stdout

Each call is a command with `--json` in a process of its own: scripts and models are predicted under the same
guards, answers are the same documents, and a call that is cancelled ends with all that it started.
"""
