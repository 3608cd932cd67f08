"""Tasks on a dataset of Ray, with an engine in each actor (extra `ray`).

import ray
from hybridlm.ray import score_dataset

scores = score_dataset(ray.data.read_parquet("texts/"), "directory-or-hub-id", actors=4, num_gpus=1)
scores.write_parquet("scores/")
"""

# Without ray its types are not known, and pyright takes this file for it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
from typing import Any

from hybridlm.errors import require_extra

require_extra("hybridlm.ray", "ray", "ray")

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset

from hybridlm.loading import load
from hybridlm.requests.validation import check_count
from hybridlm.score_files.arrow import columns_of, read_rows, schema_of, table_of
from hybridlm.score_files.rows import COLUMNS, Columns
from hybridlm.score_files.score_task import ScoreTask
from hybridlm.score_files.task import Task, run_rows
from hybridlm.score_files.text_tasks import ClassifyTask, EmbedTask
from ir_passes.files.user_warnings import warn_user

DEFAULT_BATCH_ROWS = 1024
DEFAULT_TASK = ScoreTask()


def score_dataset(
    dataset: Dataset,
    model: str | os.PathLike[str],
    actors: int = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    batch_size: int = DEFAULT_BATCH_ROWS,
    task: Task = DEFAULT_TASK,
    **settings: Any,
) -> Dataset:
    """Return the values of a task for every row of a dataset, as `LM.run_file`.

    Rows are in the dataset's order, computed in batches of `batch_size` consecutive rows: the same dataset and settings
    give the same bits, for all blocks and actors. Nothing runs before the result is consumed. A warning is given if the
    actors take all cores: reading tasks would wait.

    Args:
        dataset: columns "text" (strings), "token_ids" or "input_ids" (lists of whole numbers), one of them in every
            row, and maybe "id"; prompts with completions and messages as for `LM.score_file`; and the task's columns.
            Other columns are dropped.
        model: a checkpoint directory that exists on every machine, or a Hub id.
        actors: each loads the model once.
        num_cpus: cores of an actor; None for one. On CPUs give all cores: a step uses them.
        num_gpus: GPUs of an actor; None for none. A model uses one.
        batch_size: rows computed together.
        task: `ScoreTask`, `EmbedTask` or `ClassifyTask`. Other tasks fit no table, or no actor.
        **settings: arguments of `hybridlm.load` in every actor (lanes, context, dtype, chunk, ...).

    Returns:
        Rows with id, the task's columns, and error; wrong rows have id and error only.

    Raises:
        ValueError: `actors` or `batch_size` is no count, or the task is not for tables.
        TypeError: `dataset` is not a Ray dataset.
        ray.exceptions.RayTaskError: when the result is consumed: a wrong model, setting or column.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset: expected a ray.data.Dataset, got {type(dataset)}")
    if not isinstance(task, ScoreTask | EmbedTask | ClassifyTask):
        raise ValueError(f"task: expected a ScoreTask, EmbedTask or ClassifyTask, got {type(task).__name__}")
    for name, value in (("actors", actors), ("batch_size", batch_size)):
        check_count(value, name)
    _warn_of_waiting(actors * (1 if num_cpus is None else num_cpus))
    batches = dataset.repartition(target_num_rows_per_block=batch_size, strict=True)
    batches.context.execution_options.preserve_order = True
    return batches.map_batches(
        _Worker,
        fn_constructor_args=(task, os.fspath(model), settings),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )


def _warn_of_waiting(reserved: float) -> None:
    present = ray.cluster_resources().get("CPU", 0)
    if reserved >= present:
        warn_user(
            f"the actors take {reserved:g} CPUs (actors x num_cpus) of the cluster's {present:g}: the tasks that read "
            "the dataset wait until the cluster grows",
        )


class _Worker:
    def __init__(self, task: Task, model: str, settings: dict[str, Any]):
        self._task = task.on(load(model, **settings).text_model)

    def __call__(self, batch: pa.Table) -> pa.Table:
        fields = self._task.row_fields
        names = [str(name) for name in batch.schema.names if name in (*COLUMNS, *fields)]
        batch = pa.table({name: _plain(batch.column(name), name) for name in names})
        columns_of(batch.schema, fields)
        ids = batch.schema.field("id").type if "id" in batch.schema.names else pa.null()
        value = ids.value_type if pa.types.is_dictionary(ids) else ids
        rows = list(read_rows(batch, 0, fields=fields))
        has_prompts = not {"prompt", "messages"}.isdisjoint(batch.schema.names)
        columns: Columns = {**self._task.columns, **(self._task.prompt_columns if has_prompts else {})}
        # A batch does not know its place in the dataset, so messages do not name rows.
        return table_of(run_rows(self._task, rows, None), schema_of(pa.types.is_integer(value), columns), columns)


def _plain(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | pa.Array:
    """Return a column of Ray's tensors or Python objects as an Arrow array, others unchanged.

    Raises:
        ValueError: the column holds values of several types.
    """
    if not isinstance(column.type, pa.ExtensionType):
        return column
    values = [row.tolist() if isinstance(row, np.ndarray) else row for row in column.to_pylist()]
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"column {name}: expected values of one type in all rows, found others ({error})") from error
