"""Commands that only read information, which a predicted script may always start.

Each command has a pattern for its arguments, in which a blank ends an argument.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import PurePath

_ANY = r".*"
# Options that write a file or run another program are excluded; Git accepts their abbreviations too.
_OF_LOGS = r"((?!--(ou|ext|textc))[^ ]* )*"
_GIT = (
    r"(-C [^ ]+ |--git-dir=[^ ]+ |--work-tree=[^ ]+ |--no-pager |-P )*("
    r"--version |version |"
    r"(rev-parse|status|describe|rev-list|ls-files|cat-file|name-rev|show-ref|merge-base) .*|"
    rf"(log|diff|show) {_OF_LOGS}|"
    r"branch (--show-current |--list |--all |--remotes |--no-color |-[arv]+ |--format=[^ ]* )*|"
    r"config (--(global|local|system) )*(--get|--get-all|--get-regexp|--list|-l) .*|"
    r"remote (-v |get-url [^ ]+ )?)"
)
_NVIDIA_SMI = (
    r"((-L|--list-gpus|-q|--query|-x|--xml-format|-h|--help|--version) |"
    r"(--query-[\w-]+|--format|--id|--display)=[^ ]* |"
    r"(--query-[\w-]+|--format|-i|--id|-d|--display) [^ ]+ )*|topo -m "
)
_HOSTNAME = r"((-[AIdfis]+|--(all-fqdns|all-ip-addresses|domain|fqdn|ip-address|long|short)) )*"
_DATE = r"((\+[^ ]*|-[Ru]|-I\w*|--(utc|rfc-[^ ]*|iso-8601[^ ]*|date=[^ ]*)) )*"
_COMPILER = r"(--version|-v|-V|-dumpversion|-dumpfullversion|-dumpmachine|-print-[^ ]*) "
# typeshed_client, by which jsonargparse and so Lightning's CLI read signatures, runs this to get sys.path.
_PYTHON = r"(-V|-VV|--version|-c import\x20sys,\x20json;\x20print\(json\.dumps\(sys\.path\)\)) "

_QUERIES = {
    "cat echo false free grep head id ls lscpu lsb_release lspci nproc printenv ps pwd sw_vers test true "
    "uname uptime wc which whoami": _ANY,
    "df du": _ANY,
    "git": _GIT,
    "nvidia-smi": _NVIDIA_SMI,
    "hostname": _HOSTNAME,
    "date": _DATE,
    "gcc g++ cc c++ clang clang++ nvcc hipcc ld": _COMPILER,
    f"python python3 {PurePath(sys.executable).name}": _PYTHON,
    "ldconfig": r"(-N |-X )*-p ",
    "objdump": r"-p [^@]*",  # `@FILE` would read further options
    "file": r"(-b |-L )*[^ -][^ ]* ",
    "stty": r"size |-a |-g ",
    "sysctl": r"(-n )?[\w.]+ ",
}
_PATTERNS = {
    name: re.compile(pattern.replace(" ", "\0"), re.DOTALL)
    for names, pattern in _QUERIES.items()
    for name in names.split()
}
_SHELLS = ("sh", "bash")
_IN_SHELLS = {**_PATTERNS, "cd": re.compile(_ANY, re.DOTALL)}
# Redirections to nowhere, or of one stream to the other.
_REDIRECTION = re.compile(r"(?<!\S)(?:[12&]?>{1,2}\s*/dev/null|<\s*/dev/null|2>&1)(?=[\s;|&]|$)")
_COMMENT = re.compile(r"(?<!\S)#.*")  # inside a quotation, removing it leaves the quotation without an end
_EXPANDED = re.compile(r"[\n`$\\]")
_PUNCTUATION = frozenset("();<>|&")
_JOINTS = ("|", "||", "&&", ";")


def is_query(words: Sequence[str]) -> bool:
    """Whether a command only reads information, judged by its program and arguments."""
    if len(words) == 3 and PurePath(words[0]).name in _SHELLS and words[1] == "-c":
        return is_query_of_shell(words[2])
    return _is_known(words, _PATTERNS)


def is_query_of_shell(line: str) -> bool:
    """Whether all commands of a shell line only read information; False for a line with expansions."""
    if _EXPANDED.search(line):
        return False
    text = _REDIRECTION.sub(" ", _COMMENT.sub("", line))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in _JOINTS:
                commands.append([])
            elif word and _PUNCTUATION.issuperset(word):
                return False
            else:
                commands[-1].append(word)
    except ValueError:  # a quotation has no end
        return False
    return all(_is_known(words, _IN_SHELLS) for words in commands)


def _is_known(words: Sequence[str], patterns: dict[str, re.Pattern[str]]) -> bool:
    pattern = patterns.get(PurePath(words[0]).name) if words else None
    return pattern is not None and bool(pattern.fullmatch("".join(f"{word}\0" for word in words[1:])))
