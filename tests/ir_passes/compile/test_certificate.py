"""Certificates: strict JSON round trips, process-independent hashes, a crash-proof store."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from stored_certificates import find, keep

from hybridlm.compiler import collectives, exported, rewrites
from ir_passes import Statement
from ir_passes.compile.certificate import (
    FORMAT,
    STATEMENTS,
    Certificate,
    Fingerprints,
    Memory,
    PoolVerdict,
    Seconds,
    Versions,
)
from ir_passes.compile.certificate_store import Key
from ir_passes.compile.versions import current_versions

VERSIONS = Versions("0.10.2", "0.10.2", "3.11.7", "cpu", "cpu", "c0ffee", ("jax_enable_x64=False",))
KEY = Key("a" * 64, "b" * 64, "c" * 64, VERSIONS)

LEAK = Statement("cross-lane", "lane 0", "A leak.")


def certificate(**changes: Any) -> Certificate:
    result = Certificate(
        format=FORMAT,
        step="step",
        certify="error",
        lanes=4,
        equations=17,
        versions=VERSIONS,
        fingerprints=Fingerprints(KEY.traced, "d" * 64, KEY.contract, KEY.rules, None, "e" * 64),
        contract=('args[0]: Pool("state")',),
        proved=(Statement("non-interference", "", "Lanes are apart."),),
        audited=(Statement("no-pool-copies", "args[0]", "It is not copied."),),
        measured=(),
        not_audited=None,
        assumed=(),
        not_covered=(Statement("machine-code", "", "Machine code."),),
        faults=(),
        notes=(Statement("kernel-read", "", "A note with \u00e9 and <tags>."),),
        passes=(rewrites.PassReport("drop-dead", True, "3 equations dropped"),),
        copies=(),
        neighbours=(),
        pools=(PoolVerdict("args[0]", "result[0]", 256, 0, 0), PoolVerdict("args[1]", None, 8, 1, 2)),
        collectives=(collectives.Collective("psum", ("model",), 2, "float32", 96, None, "step.py:7"),),
        memory=Memory(112, 96, 400, 300, 256, 0),
        seconds=Seconds(0.1, 0.25, 0.05, 0.1, 2.0, 0.2),
        reused=False,
    )
    return dataclasses.replace(result, **changes)


def test_round_trip() -> None:
    item = certificate()
    read = Certificate.from_json(item.to_json())
    assert read == item
    assert (read.seconds, read.reused) == (item.seconds, item.reused)
    assert Certificate.from_json(item.to_json().encode()) == item
    assert Certificate.from_json(json.dumps(json.loads(item.to_json()))) == item


def test_notebooks_show_it_escaped() -> None:
    page = certificate(step="<b>step", faults=(Statement("frame", "", "a & b"),))._repr_html_()
    assert "<b>step" not in page and "&lt;b&gt;step" in page and "<tags>" not in page and "a &amp; b" in page
    assert "NOT CERTIFIED" in page and "NOT CERTIFIED" not in certificate()._repr_html_()
    # Claims and faults are in front, the rest after its heading; empty headings are left out.
    assert all(f"<details open><summary>{item} (1)" in page for item in ("proved", "audited", "faults"))
    assert "<details><summary>notes (1)" in page and "assumed" not in page


@pytest.mark.parametrize("field", ["proved", "audited", "assumed", "not_covered", "faults", "notes"])
def test_statements_with_unknown_ids_are_refused(field: str) -> None:
    """A certificate with such a statement is neither made nor read."""
    statement = Statement("all-is-well", "", "All is well.")
    with pytest.raises(exported.RecordError, match=rf"Certificate\.{field}.*all-is-well"):
        certificate(**{field: (statement,)})
    other = certificate()
    object.__setattr__(other, field, (statement,))  # as a program that knows other statements writes it
    with pytest.raises(exported.RecordError, match=rf"Certificate\.{field}.*all-is-well"):
        Certificate.from_json(other.to_json())


def test_a_fault_is_no_claim() -> None:
    with pytest.raises(exported.RecordError, match="proved"):
        certificate(proved=(LEAK,))


def test_seconds_are_not_compared_and_everything_else_is() -> None:
    item = certificate()
    assert certificate(seconds=Seconds(*[9.0] * 6), reused=True) == item
    assert certificate(lanes=5) != item
    assert certificate(versions=dataclasses.replace(VERSIONS, device="gpu")) != item
    assert item.seconds.checking == pytest.approx(0.25)


def test_what_holds_of_a_step_that_was_not_audited() -> None:
    item = certificate(audited=(), not_audited="this backend does not say where values lie")
    assert item.is_proof and not item.holds and item.state == "proved, NOT AUDITED"
    assert "not audited:\n    this backend does" in item.report() and "not audited (1)" in item._repr_html_()
    assert Certificate.from_json(item.to_json()) == item != certificate(audited=())
    assert certificate(audited=(), not_audited="off", proved=()).state == "NOT CERTIFIED"
    assert certificate(not_audited="cannot be read", faults=(LEAK,)).state == "NOT CERTIFIED"


def test_what_holds() -> None:
    assert certificate().holds
    assert not certificate(proved=()).holds
    assert not certificate(audited=()).holds
    assert not certificate(faults=(LEAK,)).holds
    assert "step: certified, 4 lanes, 17 equations" in certificate().report()
    assert "NOT CERTIFIED" in certificate(faults=(LEAK,)).report()
    assert "25% of XLA's 2.000 s" in certificate().report()


def edited(path: tuple[Any, ...], value: Any) -> str:
    tree = json.loads(certificate().to_json())
    node = tree
    for step in path[:-1]:
        node = node[step]
    if value is KeyError:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return json.dumps(tree)


def with_plan(format: int) -> str:
    """A certificate as formats up to 3 had it, with the bytes of a plan."""
    return json.dumps(json.loads(edited(("memory", "plan"), 192)) | {"format": format})


@pytest.mark.parametrize(("text", "message"), [
    (edited(("lanes",), KeyError), "lanes is missing"),
    (edited(("extra",), 1), "'extra' is unknown"),
    (edited(("versions", "extra"), 1), "Certificate.versions: 'extra' is unknown"),
    (edited(("lanes",), "4"), "Certificate.lanes: expected int, got '4'"),
    (edited(("lanes",), True), "expected int, got True"), (edited(("lanes",), 4.0), "expected int, got 4.0"),
    (edited(("lanes",), 1 << 64), "64 bits"), (edited(("reused",), 0), "expected bool, got 0"),
    (edited(("proved",), "all"), "expected a list"),
    (edited(("proved", 0, "id"), None), r"Certificate.proved\[0\].id: expected str, got None"),
    (edited(("step",), "x" * 200_000), "at most 100000 characters"),
    (edited(("pools", 1, "bytes"), None), r"Certificate.pools\[1\].bytes: expected int"),
    (edited(("fingerprints",), []), "expected an object"),
    (edited(("format",), FORMAT + 1), f"Certificate.format: expected {FORMAT}, got {FORMAT + 1}"),
    (with_plan(3), f"Certificate.format: expected {FORMAT}, got 3"),
    (with_plan(FORMAT), "Certificate.memory: 'plan' is unknown"),
    (certificate().to_json().replace("0.25", "NaN"), "NaN is not JSON"),
    (certificate().to_json().replace("0.25", "1e999"), "expected float, got inf"),
    (certificate().to_json().replace('"lanes": 4', '"lanes": 4, "lanes": 5'), r"duplicate keys \['lanes'\]"),
    (certificate().to_json()[:-10], "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "expected an object"),
    (" " * ((8 << 20) + 1), "at most 8388608 characters"), (b"\xff\xfe", "not JSON"),
])  # fmt: skip
def test_text_that_is_no_certificate(text: str | bytes, message: str) -> None:
    with pytest.raises(exported.RecordError, match=message):
        Certificate.from_json(text)


@pytest.mark.parametrize(("path", "value"), [
    (("lanes",), 5),
    (("certify",), "off"),
    (("assumed",), [{"id": "slot-map", "about": "args[1]", "sentence": "Its entries are distinct."}]),
    (("notes",), []), (("proved", 0, "sentence"), "Lanes may meet."), (("fingerprints", "compiled"), "f" * 64),
    (("seconds", "prove"), 0.5), (("sha256",), "0" * 64), (("sha256",), KeyError), (("sha256",), 1),
])  # fmt: skip
def test_certificate_that_was_edited_is_refused(path: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    text = edited(path, value)
    with pytest.raises(exported.RecordError, match="Certificate.sha256"):
        Certificate.from_json(text)
    (tmp_path / KEY.name).write_text(text)
    assert find(tmp_path, KEY) is None


def test_every_known_statement_is_read() -> None:
    for field, kinds in STATEMENTS.items():
        statements = tuple(Statement(str(entry), "", "A sentence.") for kind in kinds for entry in kind)
        item = certificate(**{field: statements})
        assert Certificate.from_json(item.to_json()) == item


STEP = """
import jax, jax.numpy as jnp, numpy as np
from ir_passes import Lane, LaneContract, Pool, SlotMap; from ir_passes.jaxpr import ir
from ir_passes.jaxpr.fingerprint import fingerprint

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)

def step(pool, slots, x):
    @jax.custom_jvp
    def squared(v):
        return v * v
    squared.defjvp(lambda p, t: (squared(p[0]), 2 * p[0] * t[0]))
    def body(carry, row):
        return carry + squared(jax.nn.relu(row)), row
    total, _ = jax.lax.scan(body, jnp.zeros(4), x + TABLE)
    return pool.at[slots].set(x + total, mode="drop"), x.sum(1)

ARGS = (jnp.zeros((8, 4)), jnp.arange(1, 4, dtype=jnp.int32), jnp.ones((3, 4)))
CONTRACT = LaneContract((Pool("s"), SlotMap("s", 8), Lane()), (Pool("s"), Lane()))
traced = ir.trace(step, *ARGS)
print(fingerprint(traced), fingerprint(CONTRACT.bind(step, ARGS)))
"""


@pytest.mark.long
def test_fingerprints_are_the_same_in_every_process(root: Path) -> None:
    def hashes(source: str, seed: str) -> list[str]:
        environment = {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
        run = subprocess.run(
            [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    first = hashes(STEP, "1")
    assert len(set(first)) == 2
    assert hashes("\n\n# further down\n" + STEP.replace("total", "sum_of_all"), "2") == first


def test_store_finds_its_steps(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert find(folder, KEY) is None
    assert keep(folder, KEY, certificate()) == certificate()
    assert keep(folder, KEY, certificate(notes=())) == certificate(notes=())
    assert len(list(folder.iterdir())) == 1
    for other in (
        dataclasses.replace(KEY, traced="e" * 64),
        dataclasses.replace(KEY, contract="e" * 64),
        dataclasses.replace(KEY, rules="e" * 64),
        dataclasses.replace(KEY, versions=dataclasses.replace(VERSIONS, compiler="other")),
    ):
        assert find(folder, other) is None


@pytest.mark.parametrize("content", [
    b"",
    b"{}",
    certificate().to_json().encode()[:-3],
    certificate(faults=(LEAK,)).to_json().encode(),
    certificate(fingerprints=Fingerprints("f" * 64, "d" * 64, KEY.contract, KEY.rules, None,
        "e" * 64)).to_json().encode(),
    certificate(fingerprints=Fingerprints(KEY.traced, "d" * 64, KEY.contract, "f" * 64, None,
        "e" * 64)).to_json().encode(),
    certificate(versions=dataclasses.replace(VERSIONS, jax="9")).to_json().encode(),
], ids=["empty", "other", "cut off", "faulty", "another program", "other rules", "another version"])  # fmt: skip
def test_file_that_holds_something_else_is_no_certificate(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEY.name).write_bytes(content)
    assert find(tmp_path, KEY) is None
    assert keep(tmp_path, KEY, certificate()) == certificate()


def test_versions_of_this_process() -> None:
    versions = current_versions({"xla_cpu_enable_fast_math": False})
    assert versions.jax == jax.__version__
    assert "xla_cpu_enable_fast_math=False" in versions.flags
    assert versions == current_versions({"xla_cpu_enable_fast_math": False}) != current_versions()
