"""Makes foreign texts safe to show: removes secrets and escapes control characters.

Foreign texts come from workloads, their modules and exceptions, jobs, files and libraries. They pass
here before they reach a stream, a document, a label or a log. `visible` and `redacted` keep valid
JSON valid.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from autofit_workers.spec.errors import in_short

MASK = "***"
LONGEST = 200  # characters of others in one of our sentences

# Characters without white space, and without the quotation mark that ends a JSON string; an escape is whole.
_RUN = re.compile(r'(?:\\.|[^\s"\\]|\\|"(?![\s,:}\]]|$))+')
# End of a URL's scheme, where the user's name begins; also with a single slash, or with backslashes.
_AUTHORITY = re.compile(r":[/\\]+|[/\\]{2,}")
_COLON = re.compile(r":|%3A", re.IGNORECASE)
_USER = re.compile(r"[\w.+-](?::|%3A)", re.IGNORECASE)
_WEB = re.compile(r"(?:https?|git|ftp)$", re.IGNORECASE)
_ENCODED = re.compile(r"(%3A)(.*)(%40)", re.IGNORECASE)
_PORT = re.compile(r"(?:\d*|port)(?:[^\w].*)?", re.IGNORECASE | re.DOTALL)
_MODELS = ("hf", "timm", "torchvision")  # hf:NAME@REVISION has no password
_PARAMETER = re.compile(r"""(^|[?&;#]|(?<=["'({\[,]))([\w%.+-]*)=""")
_OF_URLS = re.compile(r"pass|pwd|token|secret|sig|cred|auth|api.?key|access.?key|^key$", re.IGNORECASE)
_OF_TEXTS = re.compile(
    r"(?:passwor(?:d|t)|passwd|passphrase|secret|(?:secret|access|api|storage).?key|"
    r"(?:access|auth|api).?token)$",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"(?:^|[_.-])token$", re.IGNORECASE)
# Values of settings such as `pad_token`, which are no secrets: a number, a constant, a name in brackets.
_NO_SECRET = re.compile(
    r"""[\\"'(]*(?:-?\d+(?:\.\d+)?|none|null|true|false|[<\[].*)[\\"'),;.\]}]*""", re.IGNORECASE
)
# A quoted password, up to the closing quotation mark of the same kind; never beyond a string of JSON.
_QUOTED = re.compile(
    r"""(passw(?:or)?d(?:\\?["']\s*[:=]\s*|\s*[:=]\s*(?!"(?:[,:}\]\n]|$))))"""
    r"""(?:(\\["'])(?:[^"\\]|(?!\2)\\.)*(?=\2)"""
    r"""|(["'])(?:\\{1,2}'|\\.|(?!\3|"(?=[\s,:}\]]|$))[^\\])*(?=\3))""",
    re.IGNORECASE,
)
# A password with white space, between a user's name and an `@` on the same line; a port is no password.
_SPACED = re.compile(
    r"""(://[^\s/@:"\\\[]+:)(?!(?:\d*|port)(?:\W|$))(?:\\[^n]|[^\n"\\@]|"(?![\s,:}\]]|$)){1,200}(?=@[\w\[])""",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(
    r"""(\bbearer\s+|\bauthorization\\?["']?\s*[:=]\s*\\?["']?(?:basic|token)\s+)[^\s"'\\]+""", re.IGNORECASE
)

# Every text with a secret has one of these; all other texts are returned without a further look.
_SIGNS = (
    "@", ":/", ":\\", "//", "%40",
    "pass", "pwd", "token", "secret", "sig", "cred", "auth", "key", "bearer",
)  # fmt: skip

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_LINE_END = re.compile(r"\r\n?")
# Characters that a terminal obeys or cannot write: C0 but tab and newline, DEL, C1; marks of text direction;
# other line ends; lone surrogates.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def shown(text: str) -> str:
    """Text that is safe to show: without secrets, and with control characters escaped."""
    return redacted(visible(text))


def brief(text: str) -> str:
    """Text that is safe to show inside a message: one line of at most `LONGEST` characters."""
    line = " ".join(shown(text[: 16 * LONGEST]).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def brief_error(error: BaseException) -> str:
    """Name of an exception and the first line of its text, shortened and made safe to show."""
    return brief(in_short(error))


def visible(text: str) -> str:
    r"""Text with escapes such as `\u001b` for control characters, and without colours.

    A carriage return becomes a line end.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _LINE_END.sub("\n", _COLOUR.sub("", text))
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def redacted(text: str) -> str:
    """Text with `***` for passwords, tokens and other secrets in addresses and assignments (`key=…`).

    In doubt it removes text: one that is no valid URL may be a misspelt one.
    """
    lower = text.lower()
    if not any(sign in lower for sign in _SIGNS):
        return text
    text = _QUOTED.sub(lambda found: f"{found[1]}{found[2] or found[3]}{MASK}", text)
    text = _SPACED.sub(rf"\1{MASK}", text)
    text = _RUN.sub(lambda run: _redacted_run(run[0]), text)
    return _AUTHORIZATION.sub(rf"\1{MASK}", text)


def redacted_place(place: str) -> str:
    """Address, such as a database's URL, with `***` for its secret, even if that contains white space."""
    return _redacted_run(place)


def has_secret(place: str) -> bool:
    """Whether an address, such as a database's URL, holds a password or token."""
    return redacted_place(place) != place


def _redacted_run(run: str) -> str:
    if ":" in run or "@" in run:
        run = _without_login(run)
    if "%40" in run:
        run = _ENCODED.sub(rf"\1{MASK}\3", run)
    return _without_values(run) if "=" in run else run


def _without_login(run: str) -> str:
    """Address with its password masked: `user:***@host`.

    It masks up to the last `@`, as a password may contain `@`.
    """
    authority = _AUTHORITY.search(run)
    at = run.rfind("@")
    if authority is None:
        user = _USER.search(run, 0, max(at, 0))
        if user is None or run[: user.start() + 1].endswith(_MODELS):
            return run
        return run[: user.end()] + MASK + run[at:]
    begin = authority.end()
    if at < begin:
        return _without_misplaced(run, begin)
    if _WEB.search(run, 0, authority.start()):  # where the name may be a token
        return run[:begin] + MASK + run[at:]
    colon = _COLON.search(run, begin, at)
    return run if colon is None else run[: colon.end()] + MASK + run[at:]


def _without_misplaced(run: str, begin: int) -> str:
    """Address with the password masked where the host was forgotten: `user:***/name`.

    Args:
        run: the address.
        begin: index at which the user's name begins.
    """
    colon = run.find(":", begin)
    if colon < 0 or "/" in run[begin:colon] or "[" in run[begin:colon]:
        return run
    end = next((place for place in range(colon, len(run)) if run[place] in "/?#"), len(run))
    if _PORT.fullmatch(run, colon + 1, end):
        return run
    return run[: colon + 1] + MASK + run[end:]


def _without_values(run: str) -> str:
    """Text with the values of secret parameters masked, each up to the next `&`: `?name=***`."""
    kept, done = [], 0
    for found in _PARAMETER.finditer(run):
        names = _OF_URLS if found[1] else _OF_TEXTS
        if found.start() < done:
            continue
        name = unquote(found[2])
        may_be_harmless = not names.search(name)
        if may_be_harmless and not _TOKEN.search(name):
            continue
        end = run.find("&", found.end())
        end = len(run) if end < 0 else end
        if may_be_harmless and _NO_SECRET.fullmatch(run, found.end(), end):
            continue
        if end > found.end():
            kept += [run[done : found.end()], MASK]
            done = end
    return "".join([*kept, run[done:]])
