"""The named datasets of all tasks, and what is said where one is not here."""

from __future__ import annotations

import gzip
from dataclasses import asdict, replace

import pytest

from topshelf.config import CONFIGS
from topshelf.data import link_datasets, load_split, sequence_datasets
from topshelf.data.link_datasets import LINK_DATASETS
from topshelf.data.links import load_links
from topshelf.data.named import NAMED, not_found
from topshelf.data.ranking_sources import load_ranking
from topshelf.data.sequence_data import load_sequences
from topshelf.data.sequence_datasets import SEQUENCE_DATASETS
from topshelf.errors import ConfigError, DataError

LOADERS = {"interactions": load_split, "ranking": load_ranking, "sequences": load_sequences, "links": load_links}


def test_every_task_has_named_datasets_and_no_name_is_in_two():
    assert list(NAMED) == list(CONFIGS)
    names = [name for known in NAMED.values() for name in known]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("task", LOADERS)
def test_a_source_that_is_not_there_is_answered_with_the_names_or_the_right_task(task):
    known = next(iter(NAMED[task]))
    with pytest.raises(DataError, match=f"neither a file nor a named dataset of task {task}.*{known}"):
        LOADERS[task]("nowhere.csv")
    misspelt = f"{known[:-1]}_"
    with pytest.raises(DataError, match=f"did you mean {known}"):
        LOADERS[task](misspelt)
    other = next(name for name in LOADERS if name != task and (task, name) != ("sequences", "interactions"))
    with pytest.raises(DataError, match=f"is a named dataset of task {other}, not of task {task}; use --task {other}"):
        LOADERS[task](next(iter(NAMED[other])))


@pytest.mark.parametrize("name", [*SEQUENCE_DATASETS, *LINK_DATASETS])
def test_a_file_that_is_not_here_is_answered_with_how_to_obtain_it(name):
    task = "sequences" if name in SEQUENCE_DATASETS else "links"
    info = NAMED[task][name]
    with pytest.raises(DataError) as caught:
        LOADERS[task](name)
    text = str(caught.value)
    for part in (name, "cannot download it", info.address, info.files[0], "TOPSHELF_DATA names (not set)", info.recipe):
        assert part in text


def test_sequences_are_found_by_name_and_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPSHELF_DATA", str(tmp_path))
    (tmp_path / "sequences").mkdir()
    lines = "".join(f"{user} {' '.join(str((user + step) % 9) for step in range(5))}\n" for user in range(9))
    with gzip.open(tmp_path / "sequences" / "beauty-5core.txt.gz", "wt") as file:
        file.write(lines)
    with pytest.raises(DataError, match=r"must hold 22,363 users to be beauty, got 9\. Layout: one user per line"):
        load_sequences("beauty")
    small = replace(SEQUENCE_DATASETS["beauty"], users=9, items=9, events=45)
    monkeypatch.setitem(sequence_datasets.SEQUENCE_DATASETS, "beauty", small)
    data = load_sequences("beauty")
    assert (data.name, data.split.n_users, data.split.n_items) == ("beauty", 9, 9)
    with pytest.raises(DataError, match="one user per line and no columns"):
        load_sequences("beauty", user="u")


def test_a_graph_is_found_by_name_with_features_of_another_file(monkeypatch, tmp_path):
    folder = tmp_path / "heart-citeseer"
    folder.mkdir()
    for part, edges in {"train": "0 1\n1 2\n2 3\n", "valid": "0 2\n", "test": "1 3\n"}.items():
        (folder / f"{part}_pos.txt").write_text(edges)
    monkeypatch.setenv("TOPSHELF_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"citeseer \(Planetoid's Citeseer\) is not here.*planetoid.zip"):
        load_links("citeseer")
    monkeypatch.setattr("topshelf.data.links.locate", lambda name: link_datasets.LinkFiles(folder, None))
    with pytest.raises(DataError, match="must hold 3,327 nodes to be citeseer, got 4"):
        load_links("citeseer")
    small = replace(LINK_DATASETS["citeseer"], nodes=4, edges=5, features=0)
    monkeypatch.setitem(link_datasets.LINK_DATASETS, "citeseer", small)
    assert load_links("citeseer").name == "citeseer"
    assert len(load_links("citeseer", test=False).edges["test"]) == 0
    with pytest.raises(ConfigError, match=r"data.graph must be left out for citeseer"):
        load_links("citeseer", graph="cora")
    with pytest.raises(ConfigError, match=r"data.valid_fraction must be left out .* comes split; got 0.2"):
        load_links("citeseer", valid_fraction=0.2)


@pytest.mark.usefixtures("paper_data")
def test_the_real_files_are_what_the_catalogue_says():
    for name, info in SEQUENCE_DATASETS.items():
        if info.found() is not None:
            split = load_sequences(name).split
            assert (split.n_users, split.n_items, len(split.events)) == (info.users, info.items, info.events)
    for name, info in LINK_DATASETS.items():
        if info.found() is not None:
            data = load_links(name)
            assert sum(map(len, data.edges.values())) == info.edges
            assert (name in data.name, bool(data.negatives)) == (True, name == "citeseer")


def test_what_is_known_of_a_dataset_is_plain():
    for known in NAMED.values():
        for info in known.values():
            assert {"name", "title", "licence", "recipe", "address", "sha256"} <= asdict(info).keys()
            assert info.address or info.name == "synthetic"


def test_the_error_names_the_task_in_python_too():
    assert 'task="links"' in str(not_found("cora", "ranking"))


def test_a_misspelt_path_suggests_the_file_beside_it(tmp_path):
    (tmp_path / "purchases.csv").write_text("user,item\n1,2\n")
    with pytest.raises(DataError, match=r"did you mean .*purchases\.csv\?"):
        load_split(tmp_path / "purchses.csv")
    assert "did you mean" not in str(not_found(str(tmp_path / "nothing" / "of.csv"), "interactions"))
