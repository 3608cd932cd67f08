"""Write docs/structure.md: one line per module, the first line of its docstring.

python scripts/write_structure.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "hybridlm": "What users import: load, generate, score; engine, checkpoints, command line. Imports the two below.",
    "models": "Model families as flax modules over shared layers; state as explicit pytrees.",
    "ir_passes": "Contracts, scratch plans and audits of steps, for any JAX function; knows no language models.",
    "scripts": "Run as files; import only hybridlm.",
}
INTRODUCTION = """# Structure

hybridlm imports models and ir_passes; these import neither each other nor hybridlm (tests/test_imports.py). tests/
mirrors the three packages; tests/oracle compares with transformers, tests/reference holds independent
implementations, tests/golden what transformers computed. Written by scripts/write_structure.py from the docstrings.
"""


def structure() -> str:
    """The text that docs/structure.md must have; raises ValueError for a module without a docstring."""
    text = INTRODUCTION
    for folder, description in FOLDERS.items():
        text += f"\n## {folder}/\n\n{description}\n\n| module | |\n|---|---|\n"
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            docstring = ast.get_docstring(ast.parse(path.read_text()))
            if not docstring:
                raise ValueError(f"{name} has no docstring: its first line is the module's line in docs/structure.md")
            line = docstring.splitlines()[0].replace("``", "`").replace("|", "\\|")
            text += f"| `{name}` | {line} |\n"
    return text


if __name__ == "__main__":
    (ROOT / "docs" / "structure.md").write_text(structure())
