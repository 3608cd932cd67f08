"""Device checks on a loaded model: certificates, isolation of lanes, reused rows.

scripts/check_device.py runs them in its last part and `pytest -m gpu` one by one. Each returns figures, or raises.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from device_records import Failure
from disturbed_lanes import disturb_halves, measure
from reused_rows import check_reused_rows

import hybridlm
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.shapes import Shape

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
IDLE = 3
"""Lane that does nothing in the steps of `arguments`, of four lanes."""


def golden_model(name: str, kernels: str) -> hybridlm.LM:
    """Load a tiny model with `disturbed_lanes`' sizes; faults are warnings."""
    return hybridlm.load(
        GOLDEN / name, lanes=4, context=140, chunk=7, dtype="float32", certify="warn", progress=False, kernels=kernels
    )


def certificates(lm: hybridlm.LM) -> dict[str, Any]:
    """Compile all steps; each has to be proved and audited without a fault."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lm.engine.program, all_shapes(lm.engine, only_full=True, drafts=True)))
    faults = [f"{name}: {fault}" for name, certificate in lm.certificates.items() for fault in certificate.faults]
    for name, certificate in lm.certificates.items():
        if certificate.not_audited:
            faults.append(f"{name}: not audited: {certificate.not_audited}")
        if not certificate.is_proof:
            faults.append(f"{name}: {certificate.state}")
    copies = sum(len(certificate.copies) for certificate in lm.certificates.values())
    return _result({"steps": len(lm.certificates), "pool-sized copies": copies}, faults)


def isolation(lm: hybridlm.LM) -> dict[str, Any]:
    """Disturb every second lane in all arrays; other lanes must keep all bits."""
    faults, shapes = list[str](), _shapes(lm)
    for shape in shapes:
        reached, inert = disturb_halves(lm, shape)
        faults += [f"{shape}: undisturbed lanes changed in {output}" for output in reached]
        faults += [f"{shape}: lane {lane} was disturbed, and changed nothing" for lane in inert]
    return _result({"steps": len(shapes), "lanes": lm.engine.lanes}, faults)


def each_lane(lm: hybridlm.LM) -> dict[str, Any]:
    """Disturb each lane and array in turn; other lanes must keep all bits."""
    faults, shapes = list[str](), _shapes(lm)
    for shape in shapes:
        influence = measure(lm, shape)
        faults += [f"{shape}: {leak}" for leak in influence.leaks]
        inert = [lane for lane, arrays in influence.inert if arrays == "everything" and lane < IDLE]
        faults += [f"{shape}: lane {lane} was disturbed, and changed nothing" for lane in inert]
    return _result({"steps": len(shapes), "lanes": lm.engine.lanes}, faults)


def used_rows(lm: hybridlm.LM) -> dict[str, Any]:
    """Fill rows with NaN or old sequences; results must keep all bits."""
    check_reused_rows(lm)
    return {}


def _shapes(lm: hybridlm.LM) -> list[Shape]:
    engine = lm.engine
    return [
        engine.full_shape("decode"),
        engine.verify_shape(engine.lanes),
        engine.full_shape("prompt"),
        engine.full_shape("score"),
    ]


def _result(figures: dict[str, Any], faults: list[str]) -> dict[str, Any]:
    """Return the figures.

    Raises:
        Failure: there are faults; it names the first 20.
    """
    if faults:
        raise Failure("\n".join(faults[:20]), {**figures, "faults": len(faults)})
    return figures
