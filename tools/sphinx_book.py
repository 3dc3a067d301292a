"""What the book needs from Sphinx beyond _config.yml (a local Sphinx extension)."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from myst_nb.core.render import sanitize_script_content
from myst_nb.sphinx_ import NbMetadataCollector

sys.path.append(str(Path(__file__).resolve().parent))

from address import address_of, origin
from launch import BRANCH
from tasks import ROOT, VENDOR, digest

CACHE = Path("_build") / ".jupyter_cache"
LAUNCHERS = {
    "notebook_interface": "jupyterlab",
    "binderhub_url": "https://mybinder.org",
    "colab_url": "https://colab.research.google.com",
}


def results_hash(root: Path = ROOT) -> str:
    """What the results of a notebook depend on besides the notebook: lib/, data/, the versions."""
    python = f"python {sys.version_info[0]}.{sys.version_info[1]}"
    return digest(root / "lib", root / "data", root / "requirements.txt", python)[:16]


def use_own_scripts(app, config):
    """Serve the fetched scripts.

    They are kept out of `_static`, because Jupyter Book loads every script in there on every page.
    """
    # relative to the sources: a path of this machine would make the site differ from machine to machine
    config.html_static_path.append(Path(os.path.relpath(VENDOR / "site", app.confdir)).as_posix())


def execute_again_when_lib_changes(app, config):
    """Keep executed notebooks under a hash of lib/ and data/, and drop what older ones left."""
    folder = ROOT / CACHE / results_hash()
    for old in folder.parent.glob("*"):
        if old != folder and old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
    config.nb_execution_cache_path = str(folder)


def link_to_repository(app, config):
    """Show the buttons for repository and launching only where there is an address that they can lead to."""
    address = address_of(origin())
    options = {"repository_url": address, "use_repository_button": bool(address)}
    options["use_issues_button"] = bool(address)
    if address:
        options["repository_branch"] = BRANCH  # where `make launch ARGS=--push` puts the notebooks
        options["launch_buttons"] = LAUNCHERS
    config.html_theme_options.update(options)


def drop_doubled_scripts(app, pagename, templatename, context, doctree):
    """Keep one of each script. Sphinx registers thebe's constants twice, an error on every page."""
    seen, kept = set(), []
    for script in context["script_files"]:
        key = (str(script.filename or ""), script.attributes.get("body"))
        if key not in seen:
            seen.add(key)
            kept.append(script)
    context["script_files"] = kept


def short_state(state):
    """The state of a page's widgets, as JSON, without the many properties of layouts that are not set."""
    for model in state["state"].values():
        if model["model_name"] == "LayoutModel":
            model["state"] = {k: v for k, v in model["state"].items() if v is not None}
    return json.dumps(state, separators=(",", ":"))


def name_widgets(app, doctree):
    """Number the models of widgets: ipywidgets gives them random names, new ones in each build."""
    files = NbMetadataCollector.get_js_files(app.env, app.env.docname)
    if "ipywidgets_state" not in files:
        return
    _, script = files["ipywidgets_state"]
    state = json.loads(script["body"])
    names = {name: f"model-{number}" for number, name in enumerate(state["state"])}

    def renamed(text):
        return re.sub(r"[0-9a-f]{32}", lambda found: names.get(found[0], found[0]), text)

    script["body"] = sanitize_script_content(renamed(short_state(state)))
    for node in doctree.findall(nodes.raw):
        if "jupyter.widget-view" in node.astext():
            node[:] = [nodes.Text(renamed(node.astext()))]


def setup(app):
    app.connect("config-inited", use_own_scripts)
    app.connect("config-inited", execute_again_when_lib_changes)
    app.connect("config-inited", link_to_repository)
    app.connect("doctree-read", name_widgets)
    app.connect("html-page-context", drop_doubled_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
