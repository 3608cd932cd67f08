"""Ray datasets on two local actors: the rows of `score_file`, bit for bit."""

# ray is an extra: where it is not installed, its types are not known.
# pyright: reportMissingImports=false

import gc
import importlib
import logging
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm import MissingExtra

SETTINGS = {**SETTINGS, "context": 32}
BATCH = 16
ROWS: list[dict[str, Any]] = [{"id": f"row {i}", "text": "Ada has the kite. And Ben?"[: i % 23]} for i in range(75)]


def test_without_its_extra_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "hybridlm.ray", raising=False)
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'hybridlm\.ray: needs ray.*pip install "hybridlm\[ray\]"'):
        import hybridlm.ray  # noqa: F401  (it asks for the extra)


@pytest.fixture
def worker(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with an actor's worker, without a cluster."""
    pytest.importorskip("pyarrow", reason="needs the extra data")
    data: Any = types.ModuleType("ray.data")
    data.ActorPoolStrategy, data.Dataset = object, object
    ray: Any = types.ModuleType("ray")
    ray.data = data
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: True)
    for name, module in (("ray", ray), ("ray.data", data)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "hybridlm.ray", raising=False)
    module = importlib.import_module("hybridlm.ray")
    monkeypatch.setattr(module, "load", lambda path, **settings: text_lm)
    yield module
    sys.modules.pop("hybridlm.ray")


TASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "embeddings": (hybridlm.EmbedTask(pooling="mean"), {}),
    "chosen ids of each row": (hybridlm.ScoreTask(token_ids="ids", entropy=True), {"ids": [[5, 6], [7], []]}),
}


@pytest.mark.parametrize("kind", TASKS)
def test_an_actor_has_the_rows_of_a_file(worker: Any, text_lm: hybridlm.LM, tmp_path: Path, kind: str):
    import pyarrow as pa
    import pyarrow.parquet as pq

    task, columns = TASKS[kind]
    table = pa.table({"id": ["a", "b", "c"], "text": ["Ada", "Ben and Mia", ""], "other": [1, 2, 3], **columns})
    pq.write_table(table, tmp_path / "in.parquet")
    text_lm.run_file(task, tmp_path / "in.parquet", tmp_path / "out.parquet")
    expected = pq.read_table(tmp_path / "out.parquet").to_pylist()
    actual = worker._Worker(task, "model", {})(table).to_pylist()
    assert [row["error"] and row["error"].split(": ", 1)[1] for row in expected] == [row["error"] for row in actual]
    assert [{**row, "error": None} for row in expected] == [{**row, "error": None} for row in actual]


def test_python_objects_of_ray(worker: Any):
    """Ray pickles columns that Arrow does not take: arrays next to null, or values of several types."""
    import pickle

    import pyarrow as pa

    class Pickled(pa.ExtensionScalar):
        def as_py(self, **unused: Any) -> Any:
            return None if self.value is None else pickle.loads(self.value.as_py())

    class Objects(pa.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pa.binary(), "test.objects")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Any:
            return cls()

        def __arrow_ext_scalar_class__(self) -> Any:
            return Pickled

    def column(*values: Any) -> Any:
        storage = pa.array([None if value is None else pickle.dumps(value) for value in values], pa.binary())
        return pa.chunked_array([pa.ExtensionArray.from_storage(Objects(), storage)])

    def plain(*values: Any) -> list[Any]:
        return worker._plain(column(*values), "token_ids").to_pylist()

    assert plain(np.array([5, 6]), None, [7]) == [[5, 6], None, [7]]
    assert plain("Ada", None) == ["Ada", None]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Ada"}]}]
    for values in (("Ada", ["Ben", "Mia"]), ([5, 6], "Ada"), ([{"role": "user", "content": "Ada"}], parts)):
        with pytest.raises(ValueError, match="column token_ids: expected values of one type in all rows"):
            plain(*values)


@pytest.mark.parametrize("task", [hybridlm.DecideTask(), hybridlm.BatchTask(), None])
def test_tasks_that_fit_no_table_are_refused(worker: Any, task: Any):
    with pytest.raises(ValueError, match="task: expected a ScoreTask, EmbedTask or ClassifyTask"):
        worker.score_dataset(object(), "model", task=task)


# What follows takes a minute and needs the extra, which .ci/long installs. What Ray warns of is its own (2026-11-22).
on_a_cluster = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local cluster that finds this hybridlm; the module `ray.data`."""
    data = pytest.importorskip("ray.data", reason="needs the extra ray")
    import ray

    # Processes of Ray inherit this; `runtime_env` would make them start anew for every task.
    settings = {
        "PYTHONPATH": os.pathsep.join([str(Path(hybridlm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "JAX_PLATFORMS": "cpu",
    }
    settings |= {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "RAY_USAGE_STATS_ENABLED": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        # Three CPUs in Ray's books: two for the actors, one for what reads.
        ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, logging_level=logging.ERROR)
        yield data
        ray.shutdown()
    gc.collect()  # what Ray leaves open is found here, where its warnings are ignored


class TestOnACluster:
    pytestmark = on_a_cluster

    def test_the_rows_of_score_file(self, cluster: Any, text_path: Path, tmp_path: Path):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        from hybridlm.ray import score_dataset

        pq.write_table(
            pa.table({name: [row[name] for row in ROWS] for name in ("id", "text")}), tmp_path / "in.parquet"
        )
        lm = hybridlm.load(text_path, **SETTINGS)
        lm.score_file(tmp_path / "in.parquet", tmp_path / "out.parquet", window=BATCH)
        expected = pq.read_table(tmp_path / "out.parquet").to_pylist()
        for row in expected:
            row["error"] = row["error"] and row["error"].split(": ", 1)[1]
        assert sum(row["error"] is not None for row in expected) == 4
        # Blocks of other sizes than the batches, one of a single row.
        cuts = [0, 7, 8, 40, 75]
        blocks = [pa.Table.from_pylist(ROWS[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
        for dataset in (cluster.from_arrow(blocks), cluster.read_parquet(str(tmp_path / "in.parquet"))):
            assert score_dataset(dataset, text_path, actors=2, batch_size=BATCH, **SETTINGS).take_all() == expected
        scores = lm.score([row["text"] for row in ROWS if row["text"]])
        for row, score in zip([row for row in expected if row["error"] is None], scores, strict=True):
            # Fewer texts than lanes take part in a step of another shape.
            np.testing.assert_allclose(row["logprobs"][1:], score.logprobs[1:], rtol=0, atol=2e-4)

    def test_batches_are_cut_from_the_order_of_the_rows(self, cluster: Any, monkeypatch: pytest.MonkeyPatch):
        """Batches follow the rows, not Ray's blocks: all but the last have this many rows."""
        import pyarrow as pa

        import hybridlm.ray

        class Counting:
            def __init__(self, task: Any, model: str, settings: dict[str, Any]):
                pass

            def __call__(self, batch: Any) -> Any:
                return pa.table({"id": batch["id"], "rows": [len(batch)] * len(batch)})

        monkeypatch.setattr(hybridlm.ray, "_Worker", Counting)
        blocks = [pa.table({"id": list(range(a, b))}) for a, b in ((0, 7), (7, 8), (8, 40), (40, 75))]
        result = hybridlm.ray.score_dataset(cluster.from_arrow(blocks), "none", actors=2, batch_size=BATCH).take_all()
        assert [row["id"] for row in result] == list(range(75))
        assert [row["rows"] for row in result] == [BATCH] * 64 + [11] * 11

    def test_arrays_of_token_ids(self, cluster: Any, text_path: Path):
        """Columns as Ray makes them of NumPy arrays; no ids."""
        from hybridlm.ray import score_dataset

        ids = np.arange(3, 33).reshape(10, 3)
        dataset = cluster.from_numpy(ids).rename_columns({"data": "token_ids"})
        result = score_dataset(dataset, text_path, **SETTINGS).take_all()
        assert [row["token_ids"] for row in result] == ids.tolist() and {row["id"] for row in result} == {None}
        assert all(row["error"] is None and len(row["logprobs"]) == 3 for row in result)

    def test_wrong_columns_and_models(self, cluster: Any, text_path: Path):
        from hybridlm.ray import score_dataset

        with pytest.raises(Exception, match="expected a column text or token_ids or input_ids or .*, found id"):
            score_dataset(cluster.range(3), text_path, **SETTINGS).take_all()
        with pytest.raises(Exception, match=r"/nowhere: no such directory"):
            score_dataset(cluster.from_items(ROWS), "/nowhere", **SETTINGS).take_all()

    def test_wrong_arguments(self, cluster: Any, text_path: Path):
        from hybridlm.ray import score_dataset

        dataset = cluster.from_items(ROWS)
        wrong: list[dict[str, Any]] = [{"actors": 0}, {"batch_size": True}]
        for settings in wrong:
            with pytest.raises(ValueError, match="expected a whole number of at least 1"):
                score_dataset(dataset, text_path, **settings)
        with pytest.raises(TypeError, match=r"dataset: expected a ray\.data\.Dataset"):
            score_dataset(cast(Any, ROWS), text_path)
        with pytest.warns(UserWarning, match="take 4 CPUs"):
            score_dataset(dataset, text_path, actors=2, num_cpus=2)
