"""Identity of the machine that matmul variants are measured on."""

import builtins
import io

import pytest

from hybridlm.devices.machine import Machine

X86 = """processor : 0
model name : AMD EPYC
flags : fpu sse2 fma avx avx2

processor : 1
model name : other
flags : x
"""
ARM = "processor : 0\nFeatures : fp asimd crc32 bf16\n"


@pytest.mark.parametrize(("text", "want"), [(X86, "avx avx2 fma"), (ARM, "asimd bf16"), ("", "")])
def test_vector_instructions_match_the_first_core(text: str, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.open
    read = lambda path, *args, **kwargs: io.StringIO(text) if path == "/proc/cpuinfo" else real(path, *args, **kwargs)
    monkeypatch.setattr(builtins, "open", read)
    source = Machine.here()
    assert source.instructions == want
    assert (source.processor == "AMD EPYC") == (text == X86)
