"""Ranked lists from anywhere: a frame, a dict, lists of indices or an array, as the evaluation reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topshelf.data import IdMap, Interactions
from topshelf.data.frames import of_frame
from topshelf.errors import DataError, TopshelfWarning
from topshelf.ragged import Ragged
from topshelf.ranking import NO_ITEM

NOT_IN_CATALOGUE = -2  # at a place whose item is not in the catalogue
_ANY_ITEM = 1 << 62
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def read_lists(lists: Any, n_users: int, n_items: int, known: Interactions | None) -> tuple[Ragged, int]:
    """One list per user, best first, -1 at empty places and -2 at unknown items; and how many users are unknown.

    ``known`` has the ids of frames and dicts. Repeated items are refused.
    """
    n_left_out = 0
    if isinstance(lists, Mapping) or hasattr(type(lists), "columns"):
        if known is None:
            raise DataError("relevant must be Interactions where lists are named by ids: their id maps are needed")
        rows, items, n_left_out = (_of_dict if isinstance(lists, Mapping) else _of_frame)(lists, known)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_users))])
        given = Ragged(torch.from_numpy(indptr), torch.from_numpy(items[np.argsort(rows, kind="stable")]))
    else:
        given = (lists if isinstance(lists, Ragged) else _of_array(lists)).to("cpu")
        given.check_shape("lists", n_users)
        if isinstance(lists, Ragged):
            given.check(_ANY_ITEM, "lists")
        given = Ragged(given.indptr, given.indices.where(given.indices < n_items, NOT_IN_CATALOGUE))
    _refuse_repeats(given, known)
    return given, n_left_out


def first_places(lists: Ragged, k: int) -> Tensor:
    """The first k places of each list, -1 after the last, (U, k)."""
    owner = lists.owner()
    place = torch.arange(owner.numel()) - lists.indptr[owner]
    table = torch.full((len(lists), k), NO_ITEM)
    table[owner[place < k], place[place < k]] = lists.indices[place < k]
    return table


def warn_of_misses(places: Tensor, users: Tensor, exclude: Ragged | None, n_left_out: int) -> None:
    """Warn of what was not expected in the lists (B, K) of the evaluated users (B,)."""
    n_unknown, n_without = int((places == NOT_IN_CATALOGUE).sum()), int((places == NO_ITEM).all(1).sum())
    n_masked = 0
    if exclude is not None:
        owner = users.repeat_interleave(places.size(1))
        n_masked = int((exclude.find(owner, places.flatten()) >= 0).sum())
    notes = {
        f"{n_unknown:,} places hold items that are not in the catalogue, which count as misses": n_unknown,
        f"{n_masked:,} places hold items that the protocol masks, which count as misses": n_masked,
        f"{n_without:,} of {len(places):,} users have no list and find nothing": n_without,
        f"{n_left_out:,} users of the lists are not in relevant and are left out": n_left_out,
    }
    if any(notes.values()):
        text = "; ".join(note for note, count in notes.items() if count)
        warnings.warn(f"evaluate_lists: {text}", TopshelfWarning, stacklevel=3)


def _of_dict(lists: Mapping[Any, Any], known: Interactions) -> tuple[np.ndarray, np.ndarray, int]:
    """User and item of each place, the places of a user in order, and how many users are unknown."""
    for user, items in lists.items():
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise DataError(f"the list of user {user!r} must be item ids in order, got {items!r}")
    users = _codes(known.users, list(lists))
    ids = [
        items.tolist() if hasattr(items, "tolist") else list(items)
        for user, items in zip(users, lists.values(), strict=True)
        if user >= 0
    ]
    rows = np.repeat(users[users >= 0], [len(items) for items in ids])
    return rows, _codes(known.items, [item for items in ids for item in items]), int((users < 0).sum())


def _of_frame(frame: Any, known: Interactions) -> tuple[np.ndarray, np.ndarray, int]:
    table = of_frame(frame, "lists")
    by = next((name for name in ("rank", "score") if name in table.names), None)
    if by is None or not {"user", "item"} <= set(table.names):
        raise DataError(
            f"lists must have the columns user, item, and rank or score, got {', '.join(table.names)}; rename them"
        )
    columns = table.take(["user", "item", by], None)
    rows, items = (_codes(getattr(known, f"{name}s"), columns[name].to_list()) for name in ("user", "item"))
    n_left_out = columns["user"].filter(rows < 0).n_unique()
    if not columns[by].dtype.is_numeric():
        raise DataError(f"the column {by} must hold numbers, got {columns[by].dtype}")
    level = columns[by].cast(float).fill_null(np.nan).to_numpy()
    if np.isnan(level).any():
        raise DataError(f"lists must have a {by} in every row, got none in row {int(np.isnan(level).argmax())}")
    rows, items, level = rows[rows >= 0], items[rows >= 0], level[rows >= 0]
    # Equal scores by item index, as everywhere. Equal ranks have no order.
    order = np.lexsort((level, rows)) if by == "rank" else np.lexsort((items, -level, rows))
    tied = (np.diff(rows[order]) == 0) & (np.diff(level[order]) == 0)
    if by == "rank" and tied.any():
        at = order[int(tied.argmax())]
        raise DataError(
            f"ranks must differ within a list, got rank {level[at]:g} twice for user {known.users.ids([rows[at]])[0]!r}"
        )
    return rows[order], items[order], n_left_out


def _of_array(lists: Any) -> Ragged:
    if isinstance(lists, np.ndarray) and lists.dtype.kind in "iu":
        lists = torch.from_numpy(lists.astype(np.int64))
    if not isinstance(lists, Tensor) or lists.dim() != 2 or lists.dtype not in _WHOLE:
        got = f"{lists.dtype} of shape {tuple(lists.shape)}" if hasattr(lists, "dtype") else type(lists).__name__
        raise DataError(
            "lists must be a frame, a dict of user ids and item ids, a Ragged, or an array (users, places) of item "
            f"indices, got {got}"
        )
    flat = lists.flatten().to(torch.int64)
    if bool((flat < NO_ITEM).any()):
        raise DataError(f"lists must hold item indices, or -1 at an empty place, got {int(flat.min())}")
    return Ragged(torch.arange(lists.size(0) + 1) * lists.size(1), flat)


def _codes(ids: IdMap, values: list[Any]) -> np.ndarray:
    """Dense indices of external ids, -2 where there is none."""
    index = ids.find(values)
    return np.where(index < 0, NOT_IN_CATALOGUE, index)


def _refuse_repeats(lists: Ragged, known: Interactions | None) -> None:
    owner, items = lists.owner()[lists.indices >= 0], lists.indices[lists.indices >= 0]
    if items.numel() == 0:
        return
    span = int(items.max()) + 1
    keys = (owner * span + items).sort().values
    repeats = keys[1:][keys.diff() == 0]
    if repeats.numel():
        user, item = divmod(int(repeats[0]), span)
        shown = (user, item) if known is None else (known.users.ids([user])[0], known.items.ids([item])[0])
        raise DataError(f"a list must name an item once, got item {shown[1]!r} twice for user {shown[0]!r}")
