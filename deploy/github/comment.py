"""Writes a Markdown file as a comment on a pull request; a later run replaces the comment's text.

    python comment.py FILE.md KEY

GitHub Actions sets what it reads from the environment: GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_EVENT_PATH,
and the step sets GITHUB_TOKEN. KEY tells the comments of several locks in one pull request apart.

Exit codes: 0 the comment stands, or there is none to write (no pull request; a token that may only read, as
a fork's pull request has it, which is said as a notice); 1 GitHub refused or could not be reached.

It runs before anything is installed, so the standard library is all that it needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 65_536  # of a comment's text; GitHub refuses longer ones
PER_PAGE = 100  # the most that GitHub lists at once
TRIES = 4
LONGEST_WAIT_SECONDS = 60.0
TIMEOUT_SECONDS = 30.0
CUT = "\n\n… The rest is in the summary of the job."


def main(file: str, key: str) -> int:
    """Writes the comment; returns the exit code."""
    number = pull_request_number(Path(os.environ["GITHUB_EVENT_PATH"]))
    if number is None:
        print("No pull request: no comment is written.")
        return 0
    comments = Comments(
        os.environ["GITHUB_API_URL"], os.environ["GITHUB_REPOSITORY"], os.environ["GITHUB_TOKEN"]
    )
    marker = f"<!-- autofit: {key} -->"
    body = within_limit(f"{marker}\n{Path(file).read_text(encoding='utf-8')}")
    try:
        comments.write(number, marker, body)
    except urllib.error.HTTPError as error:
        if error.code == 403:
            print(
                "::notice::The token of this run may not write comments, as for pull requests from forks: "
                "the table is in the summary of the job. Others need `permissions: pull-requests: write`."
            )
            return 0
        print(f"::error::GitHub refused the comment: {error.code} {error.reason}")
        return 1
    except (OSError, ValueError) as error:
        print(f"::error::GitHub could not be reached: {error}")
        return 1
    return 0


def pull_request_number(event: Path) -> int | None:
    """Number of the pull request that an event is about; None for another event, such as a push."""
    number = json.loads(event.read_text(encoding="utf-8")).get("pull_request", {}).get("number")
    return number if isinstance(number, int) else None


def within_limit(body: str) -> str:
    """Text of a comment, cut at the end of a line if GitHub would refuse it for its length."""
    if len(body) <= MOST_CHARACTERS:
        return body
    return body[: MOST_CHARACTERS - len(CUT)].rpartition("\n")[0] + CUT


class Comments:
    """Comments on the pull requests of a repository.

    Args:
        api_url: address of GitHub's API.
        repository: OWNER/NAME.
        token: token that may write comments.
    """

    def __init__(self, api_url: str, repository: str, token: str) -> None:
        self._issues = f"{api_url}/repos/{repository}/issues"
        self._token = token

    def write(self, number: int, marker: str, body: str) -> None:
        """Replaces the comment that begins with `marker`, or adds one.

        Raises:
            urllib.error.HTTPError: GitHub refused.
            OSError: GitHub cannot be reached.
        """
        for comment in self._all(number):
            if (comment.get("body") or "").startswith(marker):
                self._request("PATCH", f"{self._issues}/comments/{comment['id']}", {"body": body})
                return
        self._request("POST", f"{self._issues}/{number}/comments", {"body": body})

    def _all(self, number: int) -> Iterator[dict[str, Any]]:
        page = 1
        while True:
            query = urllib.parse.urlencode({"per_page": PER_PAGE, "page": page})
            found = self._request("GET", f"{self._issues}/{number}/comments?{query}")
            yield from found
            if len(found) < PER_PAGE:
                return
            page += 1

    def _request(self, method: str, url: str, content: dict[str, str] | None = None) -> Any:
        """Sends a request, again if GitHub is busy; returns the answer's JSON."""
        request = urllib.request.Request(  # noqa: S310 - the address is GitHub's own setting
            url,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "X-GitHub-Api-Version": "2022-11-28",
            },
        )
        for attempt in range(1, TRIES + 1):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - see above
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                wait = _wait_seconds(error, attempt)
                if wait is None or attempt == TRIES:
                    raise
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")


def _wait_seconds(error: urllib.error.HTTPError, attempt: int) -> float | None:
    """Seconds until a refused request is sent again; None if it would be refused again."""
    asked = error.headers.get("Retry-After")
    if error.code < 500 and error.code != 429 and asked is None:
        return None
    # Adding a comment once more after a server's error may add it twice, which the next run does not mend;
    # that is less bad than no comment.
    return min(float(asked) if asked and asked.isdigit() else 2.0**attempt, LONGEST_WAIT_SECONDS)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python comment.py FILE.md KEY")
    sys.exit(main(*sys.argv[1:]))
