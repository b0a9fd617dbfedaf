"""The formats without a graph: Parquet, NumPy, an index of Faiss, and a folder for the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import safetensors.numpy
import scipy.sparse

from topshelf.errors import ConfigError
from topshelf.export.contents import Contents, lists
from topshelf.ragged import Ragged

USERS, ITEMS = "users.parquet", "items.parquet"
_ROWS = {
    USERS: "the users by row: id, n_training (their training items), seen (rows of the items that they have)",
    ITEMS: "the items by row: id, title where known, n_training (their training interactions)",
}


def write_rows(contents: Contents, folder: Path) -> dict[str, str]:
    """Who is who: the files that say which row is whose."""
    contents.user_table().write_parquet(folder / USERS)
    contents.item_table().write_parquet(folder / ITEMS)
    return dict(_ROWS)


def write_parquet(contents: Contents, folder: Path) -> dict[str, str]:
    users, items = contents.user_table(), contents.item_table()
    if contents.weights is None:
        assert contents.user_vectors is not None
        assert contents.item_vectors is not None
        users.with_columns(_vectors(contents.user_vectors)).write_parquet(folder / USERS)
        items.with_columns(_vectors(contents.item_vectors)).write_parquet(folder / ITEMS)
        return {name: f"{text}, vector" for name, text in _ROWS.items()}
    assert contents.histories is not None
    users.with_columns(history=lists(contents.histories)).write_parquet(folder / USERS)
    items.write_parquet(folder / ITEMS)
    weights = contents.weights.tocoo()
    columns = {"item": weights.row.astype(np.int64), "for_item": weights.col.astype(np.int64), "weight": weights.data}
    pl.DataFrame(columns).write_parquet(folder / "weights.parquet")
    more = {"weights.parquet": "weight of the vote of row item for row for_item"}
    return {USERS: f"{_ROWS[USERS]}, history (rows of the items that vote)", ITEMS: _ROWS[ITEMS], **more}


def write_numpy(contents: Contents, folder: Path) -> dict[str, str]:
    about = _ids_as_arrays(contents, folder)
    _save_lists(folder / "seen.npz", contents.seen, len(contents.items))
    about["seen.npz"] = "users by items, sparse: 1 where the user has the item, which is not recommended again"
    if contents.weights is None:
        assert contents.user_vectors is not None
        assert contents.item_vectors is not None
        np.save(folder / "user_vectors.npy", contents.user_vectors)
        np.save(folder / "item_vectors.npy", contents.item_vectors)
        return about | {"user_vectors.npy": "a row per user", "item_vectors.npy": "a row per item"}
    assert contents.histories is not None
    scipy.sparse.save_npz(folder / "weights.npz", contents.weights)
    _save_lists(folder / "histories.npz", contents.histories, len(contents.items))
    return about | {
        "weights.npz": "items by items, sparse: row i has the votes of item i",
        "histories.npz": "users by items, sparse: 1 where the item votes for the user",
    }


def write_faiss(contents: Contents, folder: Path) -> dict[str, str]:
    import faiss

    if contents.item_vectors is None or contents.user_vectors is None:
        raise ConfigError(
            f"--to faiss takes models with vectors, and {contents.config.model.name} is an item-item model: its items "
            "have weights for each other. Use --to onnx, numpy or parquet"
        )
    index = faiss.IndexFlatIP(contents.item_vectors.shape[1])
    index.add(contents.item_vectors)
    faiss.write_index(index, str(folder / "items.faiss"))
    np.save(folder / "user_vectors.npy", contents.user_vectors)
    about = {"items.faiss": "IndexFlatIP over the items, by row", "user_vectors.npy": "a row per user"}
    return about | write_rows(contents, folder)


def write_hub(contents: Contents, folder: Path) -> dict[str, str]:
    """Tensors as safetensors, with ids beside them; the card makes it a repository."""
    if contents.weights is None:
        assert contents.user_vectors is not None
        assert contents.item_vectors is not None
        tensors = {"user_vectors": contents.user_vectors, "item_vectors": contents.item_vectors}
    else:
        assert contents.histories is not None
        weights, histories = contents.weights, contents.histories
        tensors = {
            "weights.indptr": weights.indptr.astype(np.int64),
            "weights.indices": weights.indices.astype(np.int64),
            "weights.data": weights.data.astype(np.float32),
            "histories.indptr": histories.indptr.numpy(),
            "histories.indices": histories.indices.numpy(),
        }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return {"model.safetensors": f"the tensors {', '.join(tensors)}", **write_rows(contents, folder)}


def _ids_as_arrays(contents: Contents, folder: Path) -> dict[str, str]:
    """Numbers, or text of fixed width: nothing that would have to be unpickled."""
    arrays = {"user_ids.npy": contents.users, "item_ids.npy": contents.items}
    if contents.titles is not None:
        arrays["item_titles.npy"] = pl.Series(contents.titles, dtype=pl.String).fill_null("")
    for name, values in arrays.items():
        array = (
            values.to_numpy() if values.dtype.is_integer() else np.array(values.cast(pl.String).to_list(), dtype=str)
        )
        np.save(folder / name, array, allow_pickle=False)
    return dict.fromkeys(arrays, "by row")


def _save_lists(path: Path, ragged: Ragged, n_items: int) -> None:
    indptr, indices = ragged.indptr.numpy(), ragged.indices.numpy()
    table = scipy.sparse.csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=(len(ragged), n_items))
    scipy.sparse.save_npz(path, table)


def _vectors(table: np.ndarray) -> pl.Series:
    return pl.Series("vector", table, dtype=pl.Array(pl.Float32, table.shape[1]))
