"""Targets of make: what they say where there is nothing to test, and the audit of the packages."""

import json
import sys

import pytest

from tools import tasks

sys.path.append(str(tasks.ROOT / "tools"))
import audit  # noqa: E402  (the tools import each other by these names)


def ends_with(code):
    def run(*command):
        raise SystemExit(code)

    return run


@pytest.fixture
def quick(monkeypatch):
    """`make test` without the build."""
    monkeypatch.setenv(tasks.BROWSER_VARIABLE, "")
    monkeypatch.setattr(tasks, "book", lambda: None)
    monkeypatch.setattr(tasks, "get_browser", lambda: "")


def test_no_match_is_said(quick, monkeypatch):
    monkeypatch.setattr(tasks, "run", ends_with(tasks.NO_TESTS))
    with pytest.raises(SystemExit, match="No test matches -k zzzz: nothing was tested"):
        tasks.test(["-k", "zzzz"])


def test_a_failure_keeps_its_code(quick, monkeypatch):
    monkeypatch.setattr(tasks, "run", ends_with(1))
    with pytest.raises(SystemExit, match="^1$"):
        tasks.test(["-k", "encoder"])


# The audit ----------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch):
    """What npm and pip-audit say of the packages of a site: nothing, but of those that are known to be bad."""
    monkeypatch.setattr(
        audit.tasks, "vendor_packages", lambda: {"@a/one@1.0.0": {}, "two@2.0.0": {}}
    )
    said = {"npm": {"lodash": ["bad"]}, "known": ["bad"], "installed": []}

    def npm_advisories(packages):
        assert packages == {"@a/one": ["1.0.0"], "two": ["2.0.0"], **audit.KNOWN_NPM}
        if isinstance(said["npm"], Exception):
            raise said["npm"]
        return said["npm"]

    def pip_audit(*arguments):
        return not said["installed" if "--path" in arguments else "known"]

    monkeypatch.setattr(audit, "npm_advisories", npm_advisories)
    monkeypatch.setattr(audit, "pip_audit", pip_audit)
    return said


@pytest.mark.parametrize(
    ("changes", "python", "scripts", "code"),
    [
        ({}, "nothing is known", "nothing is known", 0),
        ({"installed": ["bad"]}, "see above", "nothing is known", 1),
        ({"npm": {"lodash": ["bad"], "two": ["bad"]}}, "nothing is known", "see above", 1),
        # whoever knows nothing of what is known to be bad was not asked
        ({"known": []}, "could not be asked", "nothing is known", 1),
        ({"npm": {}}, "nothing is known", "could not be asked", 1),
        ({"npm": OSError("405")}, "nothing is known", "could not be asked", 1),
        ({"npm": json.JSONDecodeError("no", "", 0)}, "nothing is known", "could not be asked", 1),
    ],
)
def test_audit(answers, capsys, changes, python, scripts, code):
    answers.update(changes)
    with pytest.raises(SystemExit) as stopped:
        audit.main()
    assert int(stopped.value.code) == code
    said = capsys.readouterr().out
    assert f"Python packages: {python}" in said
    assert f"scripts of the site: {scripts}" in said
