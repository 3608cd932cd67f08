"""The example of docs/steps/writing-a-pass.md keeps the page's promises."""

import re

import pytest

from ir_passes.rewrites.pipeline import DEFAULT_PASSES, pass_name


def test_the_example_runs(root, capsys: pytest.CaptureFixture[str]) -> None:
    page = (root / "docs" / "steps" / "writing-a-pass.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    scope: dict = {"__name__": "writing_a_pass"}
    exec(compile(example, "docs/steps/writing-a-pass.md", "exec"), scope)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "double-negation: removed 1 double negations"
    assert printed[1].startswith("drop-dead: dropped 1 dead equations")
    final = scope["final"]
    assert [eqn.primitive.name for eqn in final.program.jaxpr.eqns] == ["sin"]
    assert scope["double_negation"](final) is final
    for name in map(pass_name, DEFAULT_PASSES):
        assert f"| {name} |" in page
