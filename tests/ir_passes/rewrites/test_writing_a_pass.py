"""The example of docs/steps/writing-a-pass.md keeps the page's promises."""

import re

import pytest

from ir_passes.rewrites import DEFAULT_PASSES


def test_the_example_runs(root, capsys: pytest.CaptureFixture[str]) -> None:
    page = (root / "docs" / "steps" / "writing-a-pass.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    scope: dict = {"__name__": "writing_a_pass"}
    exec(compile(example, "docs/steps/writing-a-pass.md", "exec"), scope)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "double-negation: removed 1 double negations"
    assert printed[1].startswith("drop-dead: dropped 1 dead equations")
    results, negation = scope["done"], scope["DoubleNegation"]()
    assert [eqn.primitive.name for eqn in results.graph.program.jaxpr.eqns] == ["sin"]
    assert negation.run(results.graph) is results.graph
    for pass_ in DEFAULT_PASSES:
        assert f"| {pass_.name} |" in page
