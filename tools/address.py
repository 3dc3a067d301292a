"""Where this checkout came from, and the public addresses that follow from it. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess

from tasks import ROOT

VARIABLE = "REPO_URL"


def git(*words: str, **options) -> str:
    """What a git command in this repository says, or "" where it fails (no git, no remote, …)."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, **options).stdout.strip()
    except OSError:
        return ""


def origin() -> str:
    """The remote that this checkout belongs to: REPO_URL where it is set, else git's `origin`."""
    return os.environ.get(VARIABLE) or git("remote", "get-url", "origin")


def address_of(remote: str) -> str:
    """The public web address of a GitHub remote, or "" where there is none to link to."""
    host = r"(?:https?://(?:[^@/]*@)?github\.com/|(?:ssh://)?git@github\.com[:/])"
    found = re.fullmatch(host + r"([\w.-]+/[\w.-]+?)(?:\.git)?/?", remote)
    return f"https://github.com/{found[1]}" if found else ""


def pages_of(address: str) -> str:
    """Where GitHub Pages publishes a repository, with a slash at the end; "" for no address."""
    if not address:
        return ""
    owner, name = address.rsplit("/", 2)[1:]
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"
