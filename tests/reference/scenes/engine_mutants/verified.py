"""Steps that verify drafts and accept, replay or carry the wrong tokens."""

from typing import Any

import jax.numpy as jnp
from engine_mutants.mutant import Finder
from engine_mutants.replay import DraftCounts, StepMutant
from jax import Array
from jax.tree_util import keystr, tree_map_with_path

from hybridlm.steps.verify import accept
from ir_passes import ViolationKind as Kind

CONV_STATE = 3
"""Inputs of the convolution that are kept."""


def _all_given(counts: DraftCounts) -> Array:
    return counts.lengths


def _none(counts: DraftCounts) -> Array:
    return jnp.zeros_like(counts.accepted)


def _first(counts: DraftCounts) -> Array:
    return jnp.minimum(counts.accepted, 1)


def _one_less(counts: DraftCounts) -> Array:
    return jnp.where(counts.accepted > 0, counts.accepted - 1, 0)


def _placeholders(counts: DraftCounts) -> Array:
    return jnp.where(counts.accepted > 0, counts.width, 0)


def _clamped(counts: DraftCounts) -> Array:
    return jnp.minimum(counts.accepted, CONV_STATE)


def _of_drafted_lanes(counts: DraftCounts) -> Array:
    return jnp.where(counts.drafts > 0, counts.accepted, jnp.minimum(counts.accepted, 1))


def _longer_than_one(counts: DraftCounts) -> Array:
    return jnp.where(counts.lengths > 1, counts.accepted, 0)


def _beside(counts: DraftCounts) -> Array:
    return jnp.where(counts.lengths > 0, jnp.roll(counts.accepted, 1), 0)


def _largest_first(counts: DraftCounts) -> Array:
    return jnp.where(counts.lengths > 0, -jnp.sort(-counts.accepted), 0)


def _drafts_are_certain(tokens: Array, sampled: Array, lengths: Array, drafts: Array) -> Array:
    return accept(tokens, sampled, lengths, jnp.where(lengths == tokens.shape[1], 0, drafts))


def _all_but_one_are_drafts(tokens: Array, sampled: Array, lengths: Array, drafts: Array) -> Array:
    return accept(tokens, sampled, lengths, jnp.where(lengths == tokens.shape[1], lengths - 1, drafts))


def _one_place_off(tokens: Array, sampled: Array, lengths: Array, drafts: Array) -> Array:
    return accept(tokens, jnp.roll(sampled, -1, axis=1), lengths, drafts)


def _right_again(tokens: Array, sampled: Array, lengths: Array, drafts: Array) -> Array:
    place = jnp.arange(1, tokens.shape[1], dtype=jnp.int32)[None]
    right = (place < (lengths - drafts)[:, None]) | (tokens[:, 1:] == sampled[:, :-1])
    counted = jnp.sum(right & (place < lengths[:, None]), axis=1, dtype=jnp.int32)
    return jnp.where(lengths > 0, 1 + counted, 0)


def _drafts_alone(tokens: Array, sampled: Array, lengths: Array, drafts: Array) -> Array:
    return accept(tokens, sampled, lengths, drafts) - 1


def _behind_the_last_draft(sampled: Array, counts: DraftCounts, previous: Array) -> Array:
    last = jnp.where(counts.lengths > 0, counts.lengths - 1, 0)[:, None]
    token = jnp.take_along_axis(sampled, last, axis=1, mode="fill")
    return jnp.where(counts.accepted[:, None] > 0, token, previous)


def _at_minus_one(sampled: Array, counts: DraftCounts, previous: Array) -> Array:
    """Take the token at index -1 of a lane that accepts nothing."""
    return jnp.take_along_axis(sampled, counts.accepted[:, None] - 1, axis=1)


def _gates_reversed(record: Any) -> Any:
    """The tokens' own gates stay in the order of another list of lanes."""
    return tree_map_with_path(lambda path, x: x[::-1] if keystr(path).endswith((".decay", ".beta")) else x, record)


def _found_by_proof(id: str, source: str, description: str, kind: Kind, **fault: Any) -> StepMutant:
    return StepMutant(id, source, description, Finder.PROOF, frozenset({kind}), **fault)


def _replayed(id: str, source: str, description: str, count: Any) -> StepMutant:
    """Another number of tokens, of convolution and recurrence alike."""
    return StepMutant(id, source, description, conv=count, recurrent=count)


MUTANTS = (
    _replayed("first-token-kept", "vLLM#39273", "the state after the first of the accepted tokens is kept", _first),
    _replayed("undrafted-lanes-move-by-one", "vLLM#40738", "what is accepted counts for lanes with drafts alone",
              _of_drafted_lanes),
    _found_by_proof("gates-of-another-order", "vLLM#51812", "inputs of the recurrence are permuted, gates are not",
                    Kind.CROSS_LANE, record=_gates_reversed),
    _found_by_proof("prompts-first", "vLLM#40766", "counts are in order of size, lanes are not", Kind.CROSS_LANE,
                    conv=_largest_first, recurrent=_largest_first),
    StepMutant("drafts-taken-for-a-prompt", "vLLM#55894", "a lane full of drafts is taken for a prompt that goes on",
               accept=_drafts_are_certain),
    StepMutant("prompt-taken-for-drafts", "vLLM#47123", "a prompt of K+1 tokens is taken for drafts",
               accept=_all_but_one_are_drafts),
    _replayed("one-token-forgotten", "vLLM#34871", "lanes of one token are left out of the replay", _longer_than_one),
    _replayed("never-replayed", "SGLang#26351", "tokens are accepted, and nothing is replayed", _none),
    _found_by_proof("carried-from-minus-one", "vLLM#51508",
                    "the token of a lane that accepts nothing is read at index -1", Kind.IDLE, carry=_at_minus_one),
    _found_by_proof("drafts-alone-counted", "vLLM#50021",
                    "counts leave out the token before the drafts: -1 where a lane is idle", Kind.ACCEPTED,
                    accept=_drafts_alone),
    _replayed("clamped-to-the-convolution", "xLLM#2247", "at most as many as the convolution keeps are replayed",
              _clamped),
    StepMutant("convolution-of-all-tokens", "llama.cpp#28019",
               "the convolution keeps every draft, the recurrence is right", conv=_all_given),
    StepMutant("convolution-left-behind", "llama.cpp#28019", "the recurrence is replayed, the convolution is not",
               conv=_none),
    StepMutant("recurrence-of-all-tokens", "llama.cpp#28019",
               "the recurrence keeps every draft, the convolution is right", recurrent=_all_given),
    StepMutant("replayed-on-top", "llama.cpp#29117", "tokens are replayed into the state that has seen the drafts",
               on_top=True),
    _replayed("placeholders-replayed", "vLLM#55178", "what fills a lane up to T tokens is replayed with it",
              _placeholders),
    _replayed("one-token-behind", "turboquant#352", "the last of the accepted tokens is not replayed", _one_less),
    _replayed("every-draft-kept", "llamAmpere#8", "the state is that of all drafts, accepted or not", _all_given),
    _found_by_proof("counts-of-the-lane-beside", "vLLM#53919",
                    "each lane is replayed by the count of the lane beside it", Kind.CROSS_LANE, conv=_beside,
                    recurrent=_beside),
    StepMutant("replay-forgets-the-beginning", "tpu-inference#2431",
               "the replay of a sequence that begins goes on from the tenant before", goes_on=True),
    StepMutant("compared-one-place-off", "", "a draft is compared with the token behind it, not in its place",
               accept=_one_place_off),
    StepMutant("right-again", "", "drafts behind a wrong one count if they are right", accept=_right_again),
    StepMutant("behind-the-last-draft", "",
               "the token behind the last draft is carried, not behind the last accepted one",
               carry=_behind_the_last_draft),
    StepMutant("one-key-for-all-places", "", "all tokens of a lane are sampled with the key of the first",
               same_key=True),
)  # fmt: skip
