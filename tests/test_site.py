"""The site builds with --strict; Chromium shows tables, drawings, notebooks and search hits."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDTHS = {"desktop": 1280, "phone": 390}
MIN_LETTERS = 9
"""Smallest font size in a drawing, in pixels of the screen."""
MAX_SECONDS = 240
MEASURE = """
addEventListener("load", async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const result = {page: document.documentElement.scrollWidth, tables: [], drawings: [], hits: []};
  const right = document.querySelector("article").getBoundingClientRect().right;
  for (const table of document.querySelectorAll("article table:not(.highlighttable)"))
    result.tables.push([table.getBoundingClientRect().right - right, table.innerText.slice(0, 60)]);
  for (const image of document.querySelectorAll("article img")) {
    await image.decode().catch(() => null);
    result.drawings.push([image.getAttribute("src"), image.clientWidth, image.naturalWidth]);
  }
  if (location.search)
    for (let turn = 0; turn < 600 && !result.hits.length; turn++) {
      await wait(100);
      result.hits = [...document.querySelectorAll(".md-search-result__link")].map((link) => link.href);
    }
  const body = JSON.stringify(result);
  const next = await fetch("/measured" + location.pathname + location.search, {method: "POST", body});
  const address = await next.text();
  if (address) location.href = address;
});
"""
"""Sent to the server by each page when it is shown; the answer is the next page."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build with the documents' tools; pages of runs have their commands only."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"HYBRIDLM_DOCS_RUNS": "off", "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-5000:]
    return folder


class Visit(ThreadingHTTPServer):
    """Serves the site and leads a browser through it; `results` has each page's measurements."""

    def __init__(self, site: Path, addresses: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Measured, directory=str(site)))
        self.waiting, self.results, self.finished = list(addresses), dict[str, Any](), threading.Event()

    def next_page(self) -> str:
        if not self.waiting:
            self.finished.set()
            return ""
        return self.waiting.pop(0)


class _Measured(SimpleHTTPRequestHandler):
    server: Visit

    def send_head(self) -> Any:
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            path = path / "index.html"
        if path.suffix != ".html":
            return super().send_head()
        self._answer(path.read_text().replace("</body>", f"<script>{MEASURE}</script></body>"), "text/html")
        return None

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.results[self.path.removeprefix("/measured")] = json.loads(body)
        self._answer(self.server.next_page(), "text/plain")

    def _answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


def visit(site: Path, addresses: list[str], width: int, folder: Path) -> dict[str, Any]:
    """Open pages in Chromium in turn; return each page's measurements."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert program is not None, f"install one of {', '.join(PROGRAMS)} (Debian: apt install chromium-headless-shell)"
    with Visit(site, addresses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command += [f"--window-size={width},900", "--remote-debugging-port=0"]
        first = f"http://127.0.0.1:{server.server_port}{server.next_page()}"
        none = subprocess.DEVNULL
        browser = subprocess.Popen([*command, first], stdout=none, stderr=none, start_new_session=True)
        try:
            assert server.finished.wait(MAX_SECONDS), f"no answer after {sorted(server.results)}"
        finally:
            os.killpg(browser.pid, signal.SIGTERM)  # Debian's command is a script that starts the browser
            browser.wait()
            server.shutdown()
    return server.results


def pages(site: Path) -> list[str]:
    return sorted(
        f"/{path.parent.relative_to(site).as_posix()}/".replace("/./", "/") for path in site.rglob("index.html")
    )


@pytest.mark.parametrize("device", WIDTHS)
def test_no_page_and_no_table_is_wider_than_the_screen(site: Path, device: str, tmp_path: Path) -> None:
    width, wide = WIDTHS[device], list[Any]()
    results = visit(site, pages(site), width, tmp_path)
    assert sorted(results) == pages(site)
    for page, result in results.items():
        wide += [(page, text, excess) for excess, text in result["tables"] if excess > 1]
        if result["page"] > width:
            wide.append((page, "page", result["page"]))
    assert wide == []
    assert sum(len(result["tables"]) for result in results.values()) > 50


@pytest.mark.parametrize("device", WIDTHS)
def test_drawings_are_readable(site: Path, device: str, tmp_path: Path) -> None:
    with_drawings = [page for page in pages(site) if "<img " in (site / page[1:] / "index.html").read_text()]
    small = list[Any]()
    for page, result in visit(site, with_drawings, WIDTHS[device], tmp_path).items():
        for source, width, natural in result["drawings"]:
            assert natural > 0, f"{page}: {source} is no picture"
            if source.endswith(".svg"):
                sizes = re.findall(r'font-size="([\d.]+)"', (site / page[1:] / source).read_text())
                letters = min(map(float, sizes)) * width / natural
                small += [(page, source, letters)] if letters < MIN_LETTERS else []
    assert small == []


def test_the_search_finds_pages(site: Path, tmp_path: Path) -> None:
    queries = {"/?q=prefix+cache": "prefix-cache", "/?q=OOM": "engine", "/?q=logprobs": "scoring"}
    results = visit(site, list(queries), WIDTHS["desktop"], tmp_path)
    for query, page in queries.items():
        assert any(f"/{page}/" in hit for hit in results[query]["hits"]), (query, results[query]["hits"])


def test_notebooks_show_outputs_and_plots(site: Path) -> None:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        plots = sum("image/png" in output.get("data", {}) for output in outputs)
        text = (site / "notebooks" / path.stem / "index.html").read_text()
        assert outputs and text.count("<img ") == plots, path.name
        lines = "".join("".join(output.get("text", "")) for output in outputs).split("\n")
        words = re.findall(r"[A-Za-z]{4,}", lines[0])
        assert words and all(word in text for word in words), path.name
