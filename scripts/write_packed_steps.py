"""Write the table of steps with packed weights, compiled for an absent GPU, into docs/tables/packed-weights.md.

    python scripts/write_packed_steps.py [--models Qwen3.5-35B-A3B] [--schemes bfloat16 nvfp4]
    python scripts/write_packed_steps.py --sizes    # the table of sizes in memory: a minute, nothing is compiled

Needs the extra target-cuda, and a few minutes on two cores. Replaces the lines between two marks. The exit status is 1
if a step has a finding.
"""

import argparse
import copy
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from table_pages import ROOT, fields_of, import_references, replace_lines, step_on

PAGE = ROOT / "docs" / "tables" / "packed-weights.md"
TARGET, CONTEXT, CHUNK = "nvidia-h100", 1024, 256
CUT = {"num_hidden_layers": 2, "full_attention_interval": 2, "vocab_size": 32768}
"""Fields for one recurrent layer and one attention layer."""
EXPERTS = {"hidden_size": 1024, "num_experts": 64, "moe_intermediate_size": 512}
STEPS = ((1, 1), (64, 1), (8, CHUNK))
"""Lanes and tokens."""
HEAD = """| model | weights | lanes x tokens | floor, MB | scratch, MB: off | auto | x floor: off | auto |
|---|---|---|---:|---:|---:|---:|---:|"""


def lines(model: str, fields: dict[str, Any], schemes: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Compile the steps of a model; yield lines of the table with their findings."""
    from hybridlm.checkpoint.quantise import Recipe
    from hybridlm.engine.config import EngineConfig

    for scheme in schemes:
        recipe = None if scheme == "bfloat16" else Recipe.of(scheme)
        for lanes, tokens in STEPS:
            scratch, over, faults, floor_bytes = [], [], (), 0
            for kernels in ("off", "auto"):
                options = EngineConfig(lanes=max(lanes, 8), context=CONTEXT, chunk=CHUNK, kernels=kernels)
                _, report = step_on(TARGET, fields, options, tokens, lanes, recipe=recipe)
                assert report.floor_moved is not None
                floor_bytes, faults = report.floor_moved, (*faults, *report.faults)
                scratch.append(f"{report.scratch / 1e6:.1f}")
                over.append(f"{report.moved / floor_bytes:.2f}")
            name = scheme if scheme == "bfloat16" else f"`{scheme}`"
            cells = (model, name, f"{lanes} x {tokens}", f"{floor_bytes / 1e6:.0f}", *scratch, *over)
            yield f"| {' | '.join(cells)} |", faults


def main() -> int:
    import_references()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["131M"])
    parser.add_argument("--schemes", nargs="*", default=["bfloat16", "int8"])
    parser.add_argument("--sizes", action="store_true", help="write the table of sizes in memory instead")
    options = parser.parse_args()
    if options.sizes:
        from size_table import table as sizes

        replace_lines(PAGE, "sizes in memory", sizes().splitlines())
        return 0
    table: list[str] = []
    findings: list[str] = []
    warnings.simplefilter("ignore")
    for model in options.models:
        fields = copy.deepcopy(fields_of(model))
        text = fields.get("text_config", fields)
        text.update(CUT | (EXPERTS if "num_experts" in text else {}))
        text.pop("layer_types", None)
        for line, faults in lines(model, fields, options.schemes):
            print(line, *faults, flush=True)
            table.append(line)
            findings.extend(faults)
    replace_lines(PAGE, "steps", [*HEAD.splitlines(), *table])
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
