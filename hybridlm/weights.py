"""The weights of a loaded model: replaced, merged with adapters, and saved."""

import os
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from hybridlm.checkpoint import (
    CheckpointError,
    Fingerprint,
    OpenModel,
    bind,
    dotted,
    fingerprint_of,
    load_parameters,
    open_adapter,
    open_checkpoint,
    resolve,
)
from hybridlm.checkpoint.saved.pieces import saved_pieces, unpacked
from hybridlm.checkpoint.saved.write import save_checkpoint
from hybridlm.engine.arguments import assemble
from hybridlm.engine.engine import Engine
from hybridlm.files.atomic import new_path
from hybridlm.text_model import LoadedFiles, TextModel
from hybridlm.update import ModelWeights, NewWeights, checked_update
from hybridlm.version import __version__
from models import Decoder, family_of
from models.ops.linear import LinearWeight


class Weights:
    """The weights of a loaded model; `LM` describes arguments and errors.

    Attributes:
        decoder: flax nnx module, with the parameters in use.
        source_fingerprint: of the checkpoint with merged adapters.
    """

    def __init__(self, texts: TextModel, decoder: Decoder, files: LoadedFiles):
        self.decoder, self.source_fingerprint = decoder, files.fingerprint
        self._texts, self._files, self._adapters = texts, files, list(files.adapters)
        self._types = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), param)
            for name, param in texts.params.items()
        }

    @property
    def packed(self) -> list[str]:
        return [name for name, kind in self._types.items() if isinstance(kind, LinearWeight)]

    @property
    def _engine(self) -> Engine:
        return self._texts.engine

    @property
    def _description(self) -> ModelWeights:
        engine, files = self._engine, self._files
        texts = files.tokenizer, files.eos_token_ids
        return ModelWeights(self._texts.config, engine.kind.dtype, engine.placement, self._types, *texts)

    def merge_adapter(self, adapter: str | os.PathLike[str]) -> None:
        self._require_replaceable("merge_adapter")
        if self._texts.fingerprint != self.source_fingerprint:
            raise ValueError("merge_adapter: the weights have been updated and belong to no checkpoint; merge it there")
        weights, config = self._description, self._texts.config
        source, dtype, family = open_checkpoint(self._texts.path), weights.dtype, weights.family
        if fingerprint_of(source, dtype, self._adapters) != self._texts.fingerprint:
            raise CheckpointError(self._texts.path, "has changed since it was loaded; load it again, with the adapter")
        adapters = [*self._adapters, open_adapter(resolve(adapter))]
        bound = [bind(each, family, family.weights(config), config.tied) for each in adapters]
        changed = [weight.path for weight in family.weights(config) if bound[-1].touches(weight)]
        shards = weights.shards(family)
        with self._engine.settings.for_arrays():
            model = OpenModel(source, family, config)
            arrays = load_parameters(model, dtype, None, shards, bound, changed).arrays
        self._engine.release_parameters()
        self._adapters, self.source_fingerprint = adapters, fingerprint_of(source, dtype, adapters)
        params = self._texts.params | {dotted(path): array for path, array in arrays.items()}
        self._use(params, self._engine.row_arrays.model, self.source_fingerprint)

    def update(self, params: NewWeights, partial: bool) -> None:
        self._require_replaceable("update")
        weights, texts = self._description, self._texts
        with self._engine.settings.for_arrays():
            if partial:
                self._engine.require_parameters()
            update = checked_update(params, weights, partial)
            self._engine.release_parameters()
            arrays, typed = dict(texts.params), self._engine.row_arrays.model
            texts.params, self.decoder = {}, typed
            for names in update.layers():
                for name in names:
                    arrays.pop(name, None)
                arrays |= update.read(names)
            self._use({name: arrays[name] for name in self._types}, typed, update.fingerprint(arrays))

    def save(self, directory: str | os.PathLike[str]) -> None:
        texts, engine, dtype = self._texts, self._engine, self._engine.kind.dtype
        if not texts.has_vocabulary_head:
            raise ValueError("save: expected a vocabulary head, this checkpoint has none; copy its directory instead")
        if jax.process_count() > 1 and engine.placement.mesh is None:
            raise ValueError("save: each process has a model of its own; load it over a mesh of all their devices")
        target, source = new_path(Path(directory)), open_checkpoint(texts.path)
        if fingerprint_of(source, dtype, self._adapters, self.packed) != self.source_fingerprint:
            raise CheckpointError(texts.path, "has changed since it was loaded; config.json and tokenizer are its")
        abstract = family_of(source.config).abstract(texts.config)
        sharded_dims = {dotted(path): dims for path, dims in abstract.sharded_dims().items()}
        arrays, packed = unpacked(texts.params, sharded_dims)
        parameters = {name: saved_pieces(array, dims) for name, (array, dims) in arrays.items()}
        model = {"hybridlm": __version__, "family": texts.config.family, "dtype": dtype}
        model["fingerprint"] = str(texts.fingerprint)
        save_checkpoint(target, texts.path, model, parameters, packed)

    def _use(self, params: dict[str, jax.Array], typed: Decoder, fingerprint: Fingerprint) -> None:
        self._texts.params, self._texts.fingerprint = params, fingerprint
        paths: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(typed)))
        self.decoder, _ = assemble(typed, {path: params[dotted(path)] for path, _ in paths})
        self._engine.replace_parameters(tuple(params.values()), fingerprint)

    def _require_replaceable(self, method: str) -> None:
        fault, advice = "", "load the other weights, or the adapter, instead"
        if not self._texts.has_vocabulary_head:
            fault = "this model has no vocabulary head"
        elif self._engine.placement.several_processes:
            fault = "this model runs in several processes"
        elif packed := self.packed:
            fault, advice = f"{len(packed)} weights are packed, as {packed[0]}", "load with dequantise= to replace them"
        if fault:
            raise ValueError(f"{method}: {fault}; {advice}")
