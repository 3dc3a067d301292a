"""Ask what is known against the packages that the book uses.

    python3 tools/tasks.py audit

Python packages: pip-audit, over everything in .venv. Scripts of the site: npm's advisories on the packages in
tools/vendor.json, not on what those have bundled in. Ends with an error if anything is known, or cannot be asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

import tasks

PIP_AUDIT = "pip-audit==2.10.1"
NPM_ADVISORIES = "https://registry.npmjs.org/-/npm/v1/security/advisories/bulk"
# Versions that have known vulnerabilities: who does not find those cannot say that there are none.
# (pip-audit passes over packages that it can learn nothing about, and then reports that it found nothing.)
KNOWN_PYTHON, KNOWN_NPM = "jinja2==3.1.2", {"lodash": ["4.17.15"]}


def pip_audit(*arguments):
    """Run pip-audit, which is kept out of .venv; returns whether it found nothing."""
    folder = tasks.VENDOR / PIP_AUDIT
    if not (folder / "pip_audit").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        tasks.run(*pip, "--target", folder, PIP_AUDIT)
    environment = {**tasks.environment(), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", *arguments]
    return subprocess.run(command, env=environment).returncode == 0


def python_packages():
    """Whether nothing is known against what is installed in .venv; None where that cannot be asked."""
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "known.txt")
        known.write_text(KNOWN_PYTHON, encoding="utf8")
        if pip_audit("--requirement", known, "--no-deps", "--disable-pip"):
            return None
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    asked = subprocess.run([tasks.VENV_PYTHON, "-c", code], capture_output=True, text=True)
    return pip_audit("--path", asked.stdout.strip(), "--skip-editable")


def npm_advisories(packages):
    """What npm knows against packages, {name: [version, ...]}, as {name: [advisory, ...]}."""
    request = urllib.request.Request(
        NPM_ADVISORIES,
        data=json.dumps(packages).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def scripts():
    """The same for the packages that the scripts of the site come from."""
    packages = {}
    for package in tasks.vendor_packages():
        name, _, version = package.rpartition("@")
        packages[name] = [version]
    try:
        known = npm_advisories({**packages, **KNOWN_NPM})
    except (OSError, ValueError) as error:
        print(f"npm: {error}")
        return None
    if not KNOWN_NPM.keys() <= known.keys():
        return None
    for name in packages.keys() & known.keys():
        print(f"{name} {packages[name][0]}: {json.dumps(known[name])}")
    return not packages.keys() & known.keys()


def main():
    results = {"Python packages": python_packages(), "scripts of the site": scripts()}
    said = {True: "nothing is known", False: "see above", None: "could not be asked from here"}
    print("\n".join(f"[audit] {name}: {said[result]}" for name, result in results.items()))
    raise SystemExit(not all(results.values()))


if __name__ == "__main__":
    main()
