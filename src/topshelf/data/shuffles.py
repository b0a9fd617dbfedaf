"""Python's ``random.shuffle`` of many lists, in compiled code: the paper's split draws so, list after list."""

from __future__ import annotations

import random

import numpy as np

COMPILED = 1 << 16  # entries from which compiling pays
_LEAST_WORDS = 1 << 12


class Shuffles:
    """The draws of one ``random.Random(seed)``: each call goes on where the last one ended."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed)
        self._words: np.random.MT19937 | None = None
        self._left = np.empty(0, dtype=np.uint32)

    def first(self, indptr: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Mask (n,) of the first ``share[u]`` entries of each list u after ``shuffle``; lists are in ``indptr``."""
        if self._words is None and indptr[-1] - indptr[0] < COMPILED:
            return self._by_python(indptr, share)
        return self._by_words(indptr - indptr[0], share)

    def _by_python(self, indptr: np.ndarray, share: np.ndarray) -> np.ndarray:
        mask, bounds = np.zeros(int(indptr[-1] - indptr[0]), dtype=bool), (indptr - indptr[0]).tolist()
        for user, n in enumerate(share.tolist()):
            positions = list(range(bounds[user], bounds[user + 1]))
            self._python.shuffle(positions)
            mask[positions[:n]] = True
        return mask

    def _by_words(self, indptr: np.ndarray, share: np.ndarray) -> np.ndarray:
        from topshelf import compiled

        mask, done = np.zeros(int(indptr[-1]), dtype=bool), np.zeros(2, dtype=np.int64)
        user, wanted = 0, _LEAST_WORDS
        while True:
            compiled.shuffled_first(indptr, user, share, self._left, mask, done)
            self._left = self._left[done[1] :]
            if done[0] == len(share):
                return mask
            wanted = 2 * wanted if done[0] == user else max(_LEAST_WORDS, int(indptr[-1] - indptr[done[0]]))
            user = int(done[0])
            self._left = np.concatenate([self._left, self._drawn(wanted)])

    def _drawn(self, n: int) -> np.ndarray:
        """The next numbers of 32 bits of the generator, whose state NumPy has from here on."""
        if self._words is None:
            *key, place = self._python.getstate()[1]
            self._words = np.random.MT19937()
            self._words.state = {"bit_generator": "MT19937", "state": {"key": np.array(key), "pos": place}}
        return self._words.random_raw(n).astype(np.uint32)
