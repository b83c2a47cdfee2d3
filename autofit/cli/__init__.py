"""The command line: parse, call the API, render. Nothing else.

arguments ─ click ─▶ resolve_settings ─▶ session.run ─ events ─▶ progress on stderr
                                            └──── result ─▶ text or one JSON document on stdout
"""

from autofit.cli.app import main

__all__ = ["main"]
