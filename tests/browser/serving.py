"""A folder of pages, served on this machine."""

import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Pages(SimpleHTTPRequestHandler):
    """Serves a folder below a path, as GitHub Pages does, with 404.html for what is not there."""

    below = ""

    def translate_path(self, path):
        inside = path.startswith(f"{self.below}/")
        return super().translate_path(path.removeprefix(self.below) if inside else "/nothing here")

    def send_error(self, code, *_):
        page = Path(self.directory, "404.html")
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page.read_bytes() if page.is_file() else b"nothing")

    def log_message(self, *_):
        pass


@contextmanager
def serve(folder, below=""):
    """Serve a folder on this machine, below a path such as /some/path; gives its address."""
    handler = partial(type("Below", (Pages,), {"below": below}), directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{below}"
        server.shutdown()
