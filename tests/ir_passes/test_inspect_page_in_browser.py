"""The page of a step in headless Chromium: it is drawn, and nothing is fetched for it."""

import colorsys
import json
import re
import shutil
import subprocess
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap, compile_step
from ir_passes.inspect_page import inspect_page
from ir_passes.inspect_svg import lane_colour

pytestmark = pytest.mark.browser

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
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    assert program is not None, f"install one of {', '.join(PROGRAMS)} (Debian: apt install chromium-headless-shell)"
    page, picture, log = folder / "page.html", folder / "page.png", folder / "net.json"
    page.write_text(html, encoding="utf-8")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--log-net-log={log}", "--window-size=1180,3000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    events = json.loads(log.read_text())["events"]
    return picture, {event["params"]["url"] for event in events if "url" in (event.get("params") or {})}


def test_the_page_is_drawn_without_any_request(page: str, tmp_path: Path) -> None:
    from matplotlib.image import imread

    picture, requests = opened(page, tmp_path)
    assert not requests
    pixels = imread(picture)[..., :3]
    for lane in range(3):
        hue, saturation, lightness = map(int, re.findall(r"\d+", lane_colour(lane, 3)))
        colour = colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
        drawn = int((abs(pixels - np.array(colour)).max(axis=-1) < 0.02).sum())
        assert drawn > 2000, f"lane {lane}: {drawn} pixels of its colour; the key alone has fewer than 200"


def test_a_request_would_be_seen(page: str, tmp_path: Path) -> None:
    outside = "http://localhost:9/picture.png"
    _, requests = opened(page.replace("</body>", f'<img src="{outside}"></body>'), tmp_path)
    assert requests == {outside}
