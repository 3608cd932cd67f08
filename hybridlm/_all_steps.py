"""Every step that an engine runs."""

from hybridlm._engine import Engine
from hybridlm._programs import AnyShape, CopyShape, Shape


def all_shapes(engine: Engine, only_full: bool = False, drafts: bool = False) -> list[AnyShape]:
    """Steps that consume prompts, that draw one token of each lane, that verify drafts, that score, and that move rows.

    Rows are copied between pools, and states are moved out of a pool to be kept, and back into one.

    Requests with log-probabilities or a logits processor of the user's have steps of their own, compiled on first use.

    Args:
        only_full: for the largest number of lanes alone, and states that are kept only with a prefix cache.
        drafts: those that verify drafts too, where the engine does not draft of itself.
    """
    staging, decode = ([most] if only_full else engine.rungs(most) for most in (engine.staging, engine.lanes))
    shapes: list[AnyShape] = []
    shapes += [Shape("generate", lanes, engine.chunk) for lanes in staging]
    shapes += [Shape("generate", lanes, 1) for lanes in decode]
    if drafts or engine.speculate is not None:
        shapes += [Shape("generate", lanes, 1, guesses=engine.guesses) for lanes in decode]
        shapes += [Shape("verify", lanes, engine.draft_tokens + 1, guesses=engine.guesses) for lanes in decode]
    shapes += [Shape("score", lanes, engine.chunk, 0) for lanes in staging]
    shapes += [CopyShape(source, target) for source in staging for target in decode]
    if not only_full:
        shapes += [CopyShape(source, target) for source in decode for target in decode if source != target]
    if not only_full or engine.prefix_cache is not None:
        shapes += [shape for pool in staging for shape in engine.moves.shapes(pool)]
    if engine.prefix_cache is not None:
        # What an answer ends with is kept from where it was decoded.
        shapes += [shape for pool in decode for shape in engine.moves.shapes(pool) if shape.kept]
    return list(dict.fromkeys(shapes))
