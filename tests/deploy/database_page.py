"""The page's section on the database, followed to the letter on a server of a test's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.places import DEPLOY, ROOT
from tests.postgres import Postgres

PAGE = (DEPLOY / "README.md").read_text(encoding="utf-8")
SUPERUSER = "postgres"
PASSWORD = "the-password-of-a-test"

_SECTION = re.compile(r"^## 2\. A database\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(sql|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of the page.

    Attributes:
        kind: `sql`, which the administrator runs, or `sh`.
        text: with the password of a test where the page leaves one out.
    """

    kind: str
    text: str


def blocks() -> list[Block]:
    """Those of the section, in their order."""
    (section,) = _SECTION.findall(PAGE)
    return [Block(kind, text.replace("…", PASSWORD)) for kind, text in _BLOCK.findall(section)]


class Server:
    """A server that the page calls `db`.

    Args:
        postgres: the server itself.
        administrator: who administers it; an ordinary role is made if it is no superuser's name.
    """

    def __init__(self, postgres: Postgres, administrator: str = SUPERUSER) -> None:
        self.postgres = postgres
        self.administrator = administrator
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PG", "AUTOFIT_"))},
            "PGHOSTADDR": "127.0.0.1",  # whatever a command's host is called
            "PGPORT": str(postgres.port),
            "PATH": os.pathsep.join(
                [str(postgres.programs), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
        }
        if administrator != SUPERUSER:
            made = self.sql(f"CREATE ROLE {administrator} LOGIN CREATEROLE CREATEDB", user=SUPERUSER)
            assert made.returncode == 0, made.stderr

    def url_of(self, login: str) -> str:
        """The storage as a login has it."""
        return f"postgresql+psycopg://{login}@127.0.0.1:{self.postgres.port}/autofit"

    def follow(self, *kept: Block) -> None:
        """Types the blocks of the page, or these of them; each has to succeed."""
        for block in kept or blocks():
            done = self.sql(block.text) if block.kind == "sql" else self.shell(block.text)
            assert done.returncode == 0, f"{block.text}\n{done.stderr}"

    def shell(self, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs commands of the page, those of `postgres` as the administrator."""
        return self._run(
            ["bash", "-euo", "pipefail", "-c", commands.replace("-U postgres ", f"-U {self.administrator} ")],
            **environment,
        )

    def sql(self, statements: str, *, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Types statements into psql, as the administrator unless another user is named."""
        return self._psql(user or self.administrator, SUPERUSER, given=statements)

    def run_file(
        self, name: str, *, user: str, database: str = "autofit"
    ) -> subprocess.CompletedProcess[str]:
        """Runs a file of `deploy/postgres/` as the page does, but as this user."""
        return self._psql(user, database, "-f", f"deploy/postgres/{name}")

    def _psql(
        self, user: str, database: str, *options: str, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        command = ["psql", "-h", "db", "-U", user, "-v", "ON_ERROR_STOP=1", *options, database]
        return self._run(command, given=given)

    def _run(
        self, command: list[str], *, given: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            input=given,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
