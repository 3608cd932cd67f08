"""Options of `hybridlm.load`: documentation, defaults, checks, and the help of the command line."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from hybridlm.devices.mesh import with_all_axes
from hybridlm.devices.placement import Placement, check_lanes
from hybridlm.drafting.drafters import DEFAULT_DRAFT_TOKENS, Speculate, drafters
from hybridlm.engine.cache_size import check_cache, page_limit
from hybridlm.engine.widths import step_widths
from hybridlm.prefix_cache.budget import CacheBudget, cache_budget
from hybridlm.programs.compilation_cache import is_cache
from hybridlm.requests.validation import is_whole, without_numpy
from ir_passes.compile.proving import CERTIFY, Certify
from ir_passes.targets import Target
from models import DecoderConfig
from models.ops.kernels import check_mode

DTYPES = ("bfloat16", "float16", "float32")
DEFAULT_CONTEXT = 4096
DEFAULT_CHUNK = 128
STEP_OPTIONS = ("lanes", "context", "cache", "dtype", "chunk", "mesh", "kernels")
"""Options that define the compiled steps of scoring."""


def option(default: Any, help: str, **arguments: Any) -> Any:
    """Return a field with an option of the command line.

    Args:
        **arguments: of `typer.Option`; `flags`, the option's spellings; `read`, from the option's text to the value.
    """
    return field(default=default, metadata={"help": help, **arguments})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of `hybridlm.load`: its keyword arguments.

    Attributes:
        lanes: maximum number of sequences computed at a time.
        context: maximum length of a sequence; None for min(4096, the model's max_position_embeddings).
        cache: size of the KV cache of all sequences, in pages of 128 positions: "8GB" on each device, or a number of
            positions on all devices. None for the context of every lane. With less, sequences wait for pages, or are
            preempted (docs/engine.md).
        dtype: "bfloat16", "float16" or "float32" for the matrices; None for the dtype of most bytes of the checkpoint
            (a warning counts the other tensors). "float32" products are in full float32, without TF32.
        certify: "error": a step without a proof of isolation, or with a failed audit, raises IsolationError or
            AuditError and is never run; "warn" warns and runs it; "off" runs every step unchecked. Without XLA's buffer
            assignment there is no audit: the certificate has the reason (`not_audited`).
        compilation_cache: folder for compiled steps between processes; None for JAX's, or one in the user's cache
            directory; False for none. Files that somebody else could have written are not read (docs/trust.md).
        chunk: tokens of a prompt or text in one step. None for 128, or a shorter context, and narrower steps for fewer
            tokens.
        progress: show a line per phase; None: if standard error is a terminal.
        sanitize: for debugging: labels (owner, position, step) move with every row and are checked in every
            computation. A row of another lane raises SanitizerError. Steps are proved, but neither audited nor
            dispatched ahead, and several times slower.
        speculate: drafter for speculative decoding: "ngram" proposes the tokens after earlier occurrences of the last
            tokens; "mtp" uses the checkpoint's multi-token-prediction head; an object with
            `propose(token_ids, k) -> list[int]` is a custom drafter; None does not draft. Sampled tokens stay the same
            (docs/speculation.md).
        draft_tokens: maximum number of drafts of a sequence in a step; less than the context.
        prefix_cache: memory for the states of earlier prompts, "512MB" or a number of bytes: a prompt continues from
            its deepest cached state. The size is for the device, and again for host memory; {"device": size, "host":
            size} sets both. None disables the cache (docs/prefix-cache.md).
        mesh: devices to run on, `hybridlm.mesh(data=2, model=2)` or another mesh with some of the axes "data", "model"
            and "expert"; None for JAX's default device (docs/devices.md).
        kernels: "auto" runs the kernels of this library where the platform has them; "off" compiles plain forms with
            XLA; "interpret" runs kernels of GPUs and TPUs by Pallas' interpreter, for tests; None is "auto" on CPUs and
            "off" elsewhere. Numbers are equal up to rounding (docs/performance.md, docs/accelerators.md).
        dequantise: of a quantised checkpoint: "bfloat16", "float16" or "float32" makes plain arrays of its weights;
            None keeps matrices packed where possible (docs/quantised.md).
        adapter: directory or hub id of a LoRA adapter as PEFT saves it, merged into the weights in float32. None for
            the adapter in the weights' directory, or of a decision model; False for none. An adapter alone is loaded
            with the base model of its adapter_config.json (docs/checkpoints/adapters.md).

    Raises:
        TypeError, ValueError: an option is wrong.
    """

    lanes: int = option(8, "Most sequences in one batch (continuous batching).")
    context: int | None = option(None, "Most tokens of a sequence.", show_default="4096, or the model's if less")
    cache: str | int | None = option(
        None,
        'KV cache of all sequences together: "8GB" on each device, or a number of positions.',
        show_default="lanes x context",
        metavar="SIZE",
    )
    dtype: str | None = option(None, "bfloat16, float16 or float32.", show_default="the checkpoint's", metavar="NAME")
    certify: Certify = "error"
    compilation_cache: str | os.PathLike[str] | Literal[False] | None = None
    chunk: int | None = option(None, "Tokens per sequence in a prefill step.", show_default="128, or the context")
    progress: bool | None = None
    sanitize: bool = False
    speculate: Speculate = option(
        None,
        'Speculative decoding: "ngram" drafts from repeated text, "mtp" from the multi-token-prediction head.',
        metavar="NAME",
    )
    draft_tokens: int = option(DEFAULT_DRAFT_TOKENS, "Most draft tokens of a sequence in a step.")
    prefix_cache: str | int | Mapping[str, str | int] | CacheBudget | None = option(
        None, 'Memory for the states of common prefixes (radix cache), such as "512MB"; "0" for none.'
    )
    mesh: Mesh | AbstractMesh | None = option(
        None, "Run on a mesh of devices: data=2,model=2,expert=1 (docs/devices.md).", metavar="SIZES"
    )
    kernels: str | None = option(
        None,
        "auto: kernels of our own where the platform has them; off: XLA's programs alone.",
        metavar="off|auto",
        show_default="auto on a CPU, off elsewhere",
    )
    dequantise: str | None = None
    adapter: str | os.PathLike[str] | Literal[False] | None = option(
        None, "LoRA adapter that PEFT saved, merged at load: its directory or id on the Hub.", metavar="DIR"
    )

    def __post_init__(self) -> None:
        """Check every option; raise one ValueError for all faults."""
        without_numpy(self)
        faults = [
            f"{name}: expected a whole number of at least 1, got {number!r}"
            for name, number in (("lanes", self.lanes), ("context", self.context), ("chunk", self.chunk))
            if not (is_whole(number, 1) or (number is None and name != "lanes"))
        ]
        if is_whole(self.context, 1) and is_whole(self.chunk, 1) and self.chunk > self.context:
            faults.append(f"chunk: {self.chunk} is more than the context ({self.context})")
        if self.dtype is not None and self.dtype not in DTYPES:
            faults.append(f"dtype: expected one of {', '.join(DTYPES)} or None, got {self.dtype!r}")
        if self.certify not in CERTIFY:
            faults.append(f"certify: expected one of {', '.join(CERTIFY)}, got {self.certify!r}")
        if not is_cache(self.compilation_cache):
            faults.append(
                "compilation_cache: expected a directory, None for the default one or False, got "
                f"{self.compilation_cache!r}"
            )
        if faults:
            raise ValueError("; ".join(faults))
        drafters(self.speculate)
        limit = math.inf if self.context is None else self.context
        if not (is_whole(self.draft_tokens, 1) and self.draft_tokens < limit):
            raise ValueError(
                "draft_tokens: expected a whole number of at least 1 and less than the context "
                f"({self.context or 'of the model'}), got {self.draft_tokens!r}"
            )
        if self.kernels is not None:
            check_mode(self.kernels)
        if self.prefix_cache is not None:
            cache_budget(self.prefix_cache)
        if self.cache is not None:
            check_cache(self.cache)
        if self.dequantise is not None and self.dequantise not in DTYPES:
            raise ValueError(f"dequantise: expected one of {', '.join(DTYPES)} or None, got {self.dequantise!r}")
        if self.dequantise is not None and self.dtype not in (None, self.dequantise):
            raise ValueError(f"dequantise: expected the dtype of the model, {self.dtype!r}, got {self.dequantise!r}")

    @property
    def chosen_dtype(self) -> str | None:
        """The dtype of the matrices; None for the checkpoint's."""
        return self.dequantise or self.dtype

    @property
    def drafts(self) -> bool:
        return self.speculate is not None

    @property
    def needs_head(self) -> bool:
        """Whether the MTP head drafts."""
        return self.speculate == "mtp"

    def place(self) -> Placement:
        """Return the present devices of `mesh`.

        Raises:
            TypeError, ValueError: as `with_all_axes`; lanes that do not divide over it; a sanitizer on a mesh.
        """
        mesh: Any = self.mesh
        placement = Placement(None if mesh is None else with_all_axes(mesh), kernels=self.kernels)
        check_lanes(self.lanes, placement.data)
        if mesh is not None and self.sanitize:
            raise ValueError("sanitize: the sanitizer follows rows on one device; load without mesh to use it")
        return placement

    def place_on(self, target: Target | None) -> Placement:
        """Return absent devices; raises ValueError for lanes that do not divide over them."""
        placement = Placement(self.mesh, target, self.kernels)
        check_lanes(self.lanes, placement.data)
        return placement

    def resolved(
        self, model: DecoderConfig, dtype: str, placement: Placement, chunk: int = DEFAULT_CHUNK
    ) -> "ResolvedConfig":
        """Resolve the options for a model and its devices.

        Raises:
            ValueError: `context`, `chunk` or `draft_tokens` is too large; `prefix_cache` has a host size over several
                processes.
        """
        limit = model.max_position_embeddings
        context = min(DEFAULT_CONTEXT, limit) if self.context is None else self.context
        if context > limit:
            raise ValueError(f"context: {context} is more than the model's max_position_embeddings ({limit})")
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        values |= {"context": context, "dtype": dtype, "mesh": placement.mesh, "kernels": placement.kernel_mode}
        values |= {"chunk": min(chunk, context) if self.chunk is None else self.chunk}
        if self.chunk is None:
            values["widths"] = step_widths(values["chunk"], placement.platform)
        if self.prefix_cache is not None:
            values["prefix_cache"] = cache_budget(self.prefix_cache, placement.several_processes)
        return ResolvedConfig(**values)

    def texts(self, *without: str) -> dict[str, str]:
        """Return the options as texts, equal in all processes.

        A custom drafter is the name of its class, a mesh the sizes of its axes.
        """
        values = {option.name: getattr(self, option.name) for option in fields(self) if option.name not in without}
        if not isinstance(self.speculate, str | None):
            values["speculate"] = type(self.speculate).__qualname__
        if self.mesh is not None:
            values["mesh"] = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return {name: "none" if value is None else str(value) for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(EngineConfig):
    """Options of one engine: None is replaced by the value for the model; see `EngineConfig.resolved`.

    Attributes:
        widths: tokens of a lane in a prefill or scoring step, the widest first; empty: `chunk`.
    """

    context: int = DEFAULT_CONTEXT
    dtype: str = "bfloat16"
    chunk: int = DEFAULT_CHUNK
    kernels: str = "off"
    prefix_cache: CacheBudget | None = None
    widths: tuple[int, ...] = ()

    def cache_dtype(self, platform: str) -> Any:
        # XLA:CPU converts a whole bfloat16 cache to float32 and back for every scatter.
        return jnp.dtype("float32" if platform == "cpu" else self.dtype)

    def page_limit(self, page_bytes: int, devices: int) -> int | None:
        """Return the pages of a pool on each device; raises as `hybridlm.engine.cache_size.page_limit`."""
        return page_limit(self.cache, page_bytes, devices)
