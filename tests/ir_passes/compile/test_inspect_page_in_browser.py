"""The page of a step is drawn in headless Chromium without requests."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap, compile_step
from ir_passes.compile.inspect_page import OWN_COLOUR, inspect_page

pytestmark = pytest.mark.browser

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "dense_interval"
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def step(w, pool, slots, x):
    state = jnp.tanh(pool[slots] + x @ w)
    return state.sum(axis=-1), pool.at[slots].set(state)


@pytest.fixture(scope="module")
def page() -> str:
    contract = LaneContract(
        inputs=(Shared(), Pool("state"), SlotMap("state", size=9), Lane()), outputs=(Lane(), Pool("state"))
    )
    args = (jnp.eye(8), jnp.zeros((9, 8)), jnp.array([3, 1, 7]), jnp.ones((3, 8)))
    return inspect_page("a step of <three> lanes", compile_step(step, args, contract))


def opened(html: str, folder: Path) -> tuple[Path, set[str]]:
    """A picture of the page, and the addresses that Chromium asked for."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert program is not None, f"install one of {', '.join(PROGRAMS)} (Debian: apt install chromium-headless-shell)"
    page, picture, log = folder / "page.html", folder / "page.png", folder / "net.json"
    page.write_text(html, encoding="utf-8")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--log-net-log={log}", "--window-size=1180,6000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    events = json.loads(log.read_text())["events"]
    return picture, {event["params"]["url"] for event in events if "url" in (event.get("params") or {})}


def drawn(picture: Path) -> int:
    """Pixels in the background colour of the cells that relate a lane to itself."""
    from matplotlib.image import imread

    pixels = imread(picture)[..., :3]
    colour = np.array([int(OWN_COLOUR[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return int((abs(pixels - colour).max(axis=-1) < 0.02).sum())


def test_the_page_is_drawn_without_any_request(page: str, tmp_path: Path) -> None:
    picture, requests = opened(page, tmp_path)
    assert not requests
    assert drawn(picture) > 1000


def test_the_page_that_the_command_writes_is_drawn_without_any_request(tmp_path: Path) -> None:
    """Draw the page of a whole model's step with weights and measured lanes."""
    written = tmp_path / "inspected.html"
    settings = ["--lanes", "3", "--context", "32", "--chunk", "4", "--dtype", "float32"]
    command = [sys.executable, "-m", "hybridlm", "inspect", "-m", str(GOLDEN), "--html", str(written), *settings]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "generate 3x1 of 3, certified" in result.stdout, result.stderr
    picture, requests = opened(written.read_text(encoding="utf-8"), tmp_path)
    assert not requests
    assert drawn(picture) > 1000


def test_a_request_would_be_seen(page: str, tmp_path: Path) -> None:
    url = "http://localhost:9/picture.png"
    _, requests = opened(page.replace("</body>", f'<img src="{url}"></body>'), tmp_path)
    assert requests == {url}
