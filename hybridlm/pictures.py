"""Pictures of a hybrid model: recurrent states over a text, and a logit lens.

Computations return arrays; drawings (extra `pictures`) return a matplotlib figure and write it to a path: `.png`,
`.svg` or `.pdf`.

More than 300 lines: each picture is next to its arrays.
"""

import io
import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hybridlm.errors import require_extra
from hybridlm.lm import LM
from hybridlm.programs.jax_settings import fixed_settings
from hybridlm.requests.validation import check_count, is_whole
from models import Decoder
from models.decoder.parallel import Parallel
from models.decoder.streams import StreamMixer
from models.mixers.recurrent import Recurrent
from models.state.shapes import LaneInfo

__all__ = ["LogitLens", "StateHistory", "draw_held", "draw_lens", "draw_states", "logit_lens", "state_history"]

MAX_STATE_BYTES = 1 << 30
"""Maximum bytes of one layer's states in `state_history`."""


@dataclass(frozen=True)
class StateHistory:
    """Recurrent matrices of layers along a text of G groups of tokens.

    Attributes:
        ends: int [G], tokens up to each group's end.
        layers: int [L], layer numbers.
        norms: float32 [L, G, heads], Frobenius norm after each group.
        ranks: float32 [L, G, heads], effective rank: exp of the entropy of normalised singular values, from 1 to the
            smaller side; 0 for zeros.
        written: float32 [L, G, G, heads], norm of the state's part of each group (second G) after each group (first G),
            with later decays and corrections. Recurrences are linear, so the parts add up to the state.
    """

    token_ids: tuple[int, ...]
    ends: np.ndarray
    layers: np.ndarray
    norms: np.ndarray
    ranks: np.ndarray
    written: np.ndarray

    @property
    def held(self) -> np.ndarray:
        """Share of each group in the final state: float32 [L, G, heads], sums of 1."""
        return self._shares[:, -1]

    @property
    def memory(self) -> np.ndarray:
        """Effective memory in tokens after each group: float32 [L, G, heads].

        exp of the entropy of the groups' shares, times the group length.
        """
        shares = self._shares
        entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1.0)), axis=2)
        return np.exp(entropy) * self.ends[0]

    @property
    def _shares(self) -> np.ndarray:
        total = self.written.sum(axis=2, keepdims=True)
        return self.written / np.where(total > 0, total, 1.0)

    def __repr__(self) -> str:
        layers, groups, heads = self.norms.shape
        return f"StateHistory({layers} layers x {heads} heads, {len(self.token_ids)} tokens in {groups} groups)"


def _require_one_device(lm: LM, name: str) -> None:
    if lm.engine.placement.mesh is not None:
        raise ValueError(f"{name}: expected a model on one device, this one has a mesh; load it without")


def state_history(lm: LM, tokens: Any, group: int = 8) -> StateHistory:
    """Compute norms, ranks and origins of recurrent states, in layers that begin with a recurrence.

    Args:
        lm: on one device.
        tokens: a string or token ids.
        group: tokens of a group, which costs a recurrence over the text.

    Raises:
        TypeError, ValueError: a wrong text, several devices, no recurrence, different numbers of heads, or states above
            `MAX_STATE_BYTES`.
    """
    check_count(group, "group")
    _require_one_device(lm, "state_history")
    ids = lm.text_model.inputs.encode(tokens, "tokens")
    mixers = _recurrent(lm.model)
    if not mixers:
        raise ValueError(
            "state_history: expected layers that read the residual stream, with one array [head, value, key] of a "
            "recurrence; this model has none"
        )
    groups = -(-len(ids) // group)
    hidden = lm.forward(np.array(ids), logits=False).hidden_states
    results = []
    for layer, (norm, mixer) in mixers.items():
        (matrices,) = _matrices(mixer)
        size = 4 * groups * int(np.prod([size for _, size in getattr(mixer.state_arrays(), matrices).sizes]))
        if size > MAX_STATE_BYTES:
            raise ValueError(
                f"group: {groups} groups need {size:,} bytes of states, expected {MAX_STATE_BYTES:,} at most"
            )
        with fixed_settings():
            results.append(jax.device_get(_history(mixer, norm, hidden[layer], group, matrices)))
    if len({result[0].shape for result in results}) > 1:
        raise ValueError("state_history: expected layers with equally many heads")
    norms, ranks, written = (np.stack(each) for each in zip(*results, strict=True))
    ends = np.minimum(np.arange(1, groups + 1) * group, len(ids))
    return StateHistory(tuple(ids), ends, np.array(list(mixers)), norms, ranks, written)


def _recurrent(model: Decoder) -> dict[int, tuple[Any, Any]]:
    """Return each layer's norm or `StreamMixer` before its recurrent mixer, or None, and this mixer."""
    layers: dict[int, tuple[Any, Any]] = {}
    for i, layer in enumerate(model.layers):
        branch = layer.branches[0]
        if branch.block is not None:
            continue  # it reads a mix of blocks, not the residual stream
        mixers = branch.inner.layers if isinstance(branch.inner, Parallel) else [branch.inner]
        for mixer in mixers:
            if isinstance(mixer, Recurrent) and len(_matrices(mixer)) == 1:
                layers[i] = (branch.norm if branch.connection is None else branch.connection, mixer)
    return layers


def _matrices(mixer: Recurrent) -> list[str]:
    arrays = mixer.state_arrays()._asdict()
    return [
        name
        for name, array in arrays.items()
        if array is not None and array.role == "recurrent" and len(array.sizes) == 3
    ]


@partial(jax.jit, static_argnums=(3, 4))
def _history(mixer: Any, norm: Any, x: Array, group: int, field: str) -> tuple[Array, Array, Array]:
    """Run a recurrence from the beginning of each group, in one batch.

    Lane j starts from zero at group j; by linearity, group j - 1 wrote its difference to lane j - 1.
    """
    count = x.shape[0]
    groups = -(-count // group)
    inputs = x[None]
    if isinstance(norm, StreamMixer):
        inputs, _ = norm.split(inputs)
    elif norm is not None:
        inputs = norm(inputs)
    tokens, _ = mixer.project_in(inputs)

    def by_group(leaf: Array) -> Array:
        leaf = jnp.pad(leaf[0], [(0, groups * group - count)] + [(0, 0)] * (leaf.ndim - 2))
        return leaf.reshape((groups, group, *leaf.shape[1:]))

    def step(state: Any, arguments: tuple[Any, Array, Array]) -> tuple[Any, Any]:
        tokens, length, number = arguments
        lengths = jnp.broadcast_to(length, (groups,))
        valid = jnp.arange(group, dtype=jnp.int32)[None] < lengths[:, None]
        never = jnp.zeros((groups,), bool)
        positions = jnp.broadcast_to(number * group, (groups,))  # for keys that are rotated by position
        info = LaneInfo(lengths, positions, valid, never, 0)
        wide = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (groups, *leaf.shape)), tokens)
        _, next_state = mixer.recur(wide, info, state)
        begun = jnp.arange(groups, dtype=jnp.int32) <= number
        matrices = jnp.where(begun[:, None, None, None], getattr(next_state, field), 0.0)
        parts = matrices - jnp.concatenate([matrices[1:], jnp.zeros_like(matrices[:1])])
        return next_state._replace(**{field: matrices}), (
            *_norm_and_rank(matrices[0]),
            jnp.sqrt(jnp.sum(parts**2, (2, 3))),
        )

    numbers = np.arange(groups, dtype=np.int32)
    lengths = jnp.asarray(np.minimum(count - numbers * group, group).astype(np.int32))
    start = mixer.init_state(groups, 1, jnp.float32)
    _, results = lax.scan(step, start, (jax.tree.map(by_group, tokens), lengths, jnp.asarray(numbers)))
    return results


def _norm_and_rank(matrices: Array) -> tuple[Array, Array]:
    values = jnp.linalg.svd(matrices, compute_uv=False)
    total = jnp.sum(values, axis=-1, keepdims=True)
    shares = values / jnp.where(total > 0, total, 1.0)
    entropy = -jnp.sum(shares * jnp.log(jnp.where(shares > 0, shares, 1.0)), axis=-1)
    return jnp.sqrt(jnp.sum(values**2, axis=-1)), jnp.where(total[..., 0] > 0, jnp.exp(entropy), 0.0)


@dataclass(frozen=True)
class LogitLens:
    """Next tokens by the vocabulary head, after each layer.

    Attributes:
        token_ids: T tokens.
        top: int32 [layers + 1, T, count], after the embedding and each layer.
        logprobs: float32, of the same shape.
        next_logprobs: float32 [layers + 1, T - 1], of the next tokens.
        texts: id -> text.
    """

    token_ids: tuple[int, ...]
    top: np.ndarray
    logprobs: np.ndarray
    next_logprobs: np.ndarray
    texts: dict[int, str]

    def __repr__(self) -> str:
        layers, tokens, count = self.top.shape
        return f"LogitLens({layers - 1} layers, {tokens} tokens, the {count} most likely of each)"


def logit_lens(lm: LM, tokens: Any, top: int = 1) -> LogitLens:
    """Read the residual stream after each layer by the final norm and the vocabulary head.

    Args:
        lm: on one device.
        tokens: a string or token ids.
        top: most likely tokens per position.

    Raises:
        TypeError, ValueError: wrong arguments, or several devices.
    """
    if not is_whole(top, 1, lm.config.vocab_size):
        raise ValueError(f"top: expected 1..{lm.config.vocab_size}, got {top!r}")
    _require_one_device(lm, "logit_lens")
    ids = lm.text_model.inputs.encode(tokens, "tokens")
    hidden = lm.forward(np.array(ids), logits=False).hidden_states
    following = jnp.asarray([*ids[1:], 0], jnp.int32)
    with fixed_settings():
        readings = [jax.device_get(_read(lm.logits(item), following, top)) for item in hidden]
    best, logprobs, following_logprobs = (np.stack(each) for each in zip(*readings, strict=True))
    named = {*np.unique(best).tolist(), *ids}
    tokenizer = lm.tokenizer
    texts = {
        item: str(item) if tokenizer is None else tokenizer.decode([item], skip_special_tokens=False) for item in named
    }
    return LogitLens(tuple(ids), best, logprobs, following_logprobs[:, :-1], texts)


@partial(jax.jit, static_argnums=2)
def _read(logits: Array, following: Array, top: int) -> tuple[Array, Array, Array]:
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    best, ids = lax.top_k(logprobs, top)
    return ids, best, jnp.take_along_axis(logprobs, following[:, None], axis=1, mode="fill")[:, 0]


def _figure(name: str, width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    require_extra(f"hybridlm.pictures.{name}", "matplotlib", "pictures")
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure for notebooks, on every backend."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _written(figure: Any, path: str | os.PathLike[str] | None) -> Any:
    if path is not None:
        figure.savefig(path)
    return figure


def draw_states(history: StateHistory, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw norm, effective rank and effective memory of each head, a row per layer."""
    figure, axes = _figure("draw_states", 10, 2.2 * len(history.layers), len(history.layers), 3)
    kinds = ("norm", history.norms), ("effective rank", history.ranks), ("effective memory, tokens", history.memory)
    for row, layer in zip(range(len(history.layers)), history.layers, strict=True):
        for axis, (name, values) in zip(axes[row], kinds, strict=True):
            axis.plot(history.ends, values[row])
            axis.set_title(f"layer {layer}: {name}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("token")
    return _written(figure, path)


def draw_held(history: StateHistory, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw the tokens that recurrent heads hold at the end, a picture per layer."""
    figure, axes = _figure("draw_held", 10, 1.6 * len(history.layers), len(history.layers))
    for row, layer in enumerate(history.layers):
        axis = axes[row, 0]
        image = axis.imshow(history.held[row].T, aspect="auto", interpolation="nearest", cmap="viridis")
        axis.set_title(f"layer {layer}: share of the state by the tokens that wrote it", fontsize=9)
        axis.set(ylabel="head", yticks=range(history.held.shape[2]))
        places = range(0, len(history.ends), max(1, len(history.ends) // 8))
        axis.set_xticks(list(places), [str(history.ends[place]) for place in places])
        figure.colorbar(image, ax=axis)
    axes[-1, 0].set_xlabel("tokens up to")
    return _written(figure, path)


def draw_lens(lens: LogitLens, path: str | os.PathLike[str] | None = None, first: int = 0, count: int = 16) -> Any:
    """Draw the most likely next token after each layer, coloured by probability.

    Args:
        first, count: shown tokens.
    """
    best, probabilities = lens.top[:, first : first + count, 0], np.exp(lens.logprobs[:, first : first + count, 0])
    figure, axes = _figure("draw_lens", 0.8 * best.shape[1] + 1, 0.4 * best.shape[0] + 1.2)
    axis = axes[0, 0]
    image = axis.imshow(probabilities, aspect="auto", vmin=0, vmax=1, cmap="Blues", origin="lower")
    for (row, column), token in np.ndenumerate(best):
        dark = probabilities[row, column] > 0.6
        axis.text(column, row, _label(lens.texts[int(token)]), ha="center", va="center", fontsize=7,
                  color="white" if dark else "black")  # fmt: skip
    labels = [_label(lens.texts[token]) for token in lens.token_ids[first : first + count]]
    axis.set_xticks(range(len(labels)), labels, rotation=60, fontsize=7)
    axis.set_yticks(range(best.shape[0]), ["embedding", *map(str, range(best.shape[0] - 1))], fontsize=7)
    axis.set(xlabel="token", ylabel="after layer")
    figure.colorbar(image, ax=axis, label="probability")
    return _written(figure, path)


def _label(text: str) -> str:
    label = repr(text)[1:-1].replace(" ", "·").replace("$", r"\$")
    return label if len(label) <= 8 else label[:7] + "…"
