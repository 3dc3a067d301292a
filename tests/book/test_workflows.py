"""The workflows of GitHub: correct for actionlint, only calls of make, and no right that is not needed."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tools import tasks

FOLDER = Path(__file__).resolve().parents[2] / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
READ = {"contents": "read"}


def actionlint(*paths):
    command = [tasks.nodejs("node"), "tools/actionlint.cjs", *paths]
    return subprocess.run(command, cwd=tasks.ROOT, capture_output=True, text=True)


def jobs():
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf8"))["jobs"].items():
            yield f"{path.stem}: {name}", job


def test_actionlint_is_content():
    done = actionlint(*WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("matrix.python }}", "matrix.pthon }}", 'property "pthon" is not defined'),
        ("timeout-minutes", "timeout", 'unexpected key "timeout"'),
        ("contents: read", "contents: all", '"all" is invalid for permission'),
        ("needs: test", "needs: tests", '"launch" needs job "tests"'),
    ],
)
def test_actionlint_finds_what_is_wrong(tmp_path, right, wrong, complaint):
    text = (FOLDER / "book.yml").read_text(encoding="utf8")
    assert right in text
    (tmp_path / "bad.yml").write_text(text.replace(right, wrong))
    done = actionlint(tmp_path / "bad.yml")
    assert done.returncode == 1
    assert complaint in done.stdout


def test_workflows_only_call_make():
    targets = set()
    for name, job in jobs():
        for step in job["steps"]:
            if "run" in step:
                assert re.fullmatch(r"make [a-z]+( ARGS=--push)?", step["run"]), f"{name}: {step}"
                targets.add(step["run"].split()[1])
            else:  # GitHub's own actions, of a named version
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]), f"{name}: {step}"
    assert targets == {"lint", "book", "test", "launch", "links"}
    assert targets <= set(tasks.TARGETS)


def test_what_a_pull_request_contains_runs_without_rights():
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf8")
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == READ
        assert "secrets." not in text
        assert "pull_request_target" not in text
        assert "workflow_run" not in text
    for name, job in jobs():
        more = {right for right, level in job.get("permissions", {}).items() if level == "write"}
        from_main = "github.event_name != 'pull_request'" in job.get("if", "")
        assert from_main or not more, f"{name} may write, and runs for pull requests"
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout") and "contents" not in more:
                assert step["with"]["persist-credentials"] is False, name
