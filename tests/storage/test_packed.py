"""Tables as they are kept: the same rows, written once, and nothing believed that is not whole."""

import lzma
from pathlib import Path

import pytest

from hmmscope.errors import DamagedError
from hmmscope.storage import packed, store

INDEX = [
    {"seed": 0, "part": "RNN, 1 layer", "rows": {"scores": 1, "runs": 1}},
    {"seed": 0, "part": "RNN, 2 layers", "rows": {"scores": 1}},
    {"seed": 1, "part": "RNN, 2 layers", "rows": {"scores": 1, "runs": 0}},
]
TABLES = {
    "scores": [
        {"seed": 0, "value": 0.1, "name": "ü"},
        {"seed": 0, "value": None, "more": [1, 2]},
        {"seed": 1, "value": 1e-300},
    ],
    "runs": [{"seed": 0, "run": "a"}],
}


def worked_on(folder: Path, tables: dict[str, list[dict]], index: list[dict] | None) -> Path:
    """A folder as an experiment leaves it."""
    store.make_folder(folder / "tables")
    for name, rows in tables.items():
        store.write_table(folder / "tables" / f"{name}.jsonl", rows)
    if index is not None:
        store.write_table(folder / packed.INDEX, index)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("index", [INDEX, None], ids=["seeds", "no seeds"])
def test_what_is_packed_is_read_as_it_was(tmp_path: Path, index: list[dict] | None) -> None:
    source, kept = worked_on(tmp_path / "work", TABLES, index), tmp_path / "kept"
    packed.pack(source, kept)
    assert packed.is_packed(kept)
    assert not packed.is_packed(source)
    found = packed.read_tables(kept)
    assert found == packed.read_tables(source) == dict(sorted(TABLES.items()))
    for name, rows in found.items():  # keys in their order too
        assert store.table_bytes(rows, name) == (source / "tables" / f"{name}.jsonl").read_bytes()
    packed.pack(kept, tmp_path / "again")
    assert packed.read_tables(tmp_path / "again") == found


def test_another_seed_adds_files_and_changes_none(tmp_path: Path) -> None:
    first = worked_on(
        tmp_path / "first",
        {name: [row for row in rows if row["seed"] == 0] for name, rows in TABLES.items()},
        INDEX[:2],
    )
    packed.pack(first, tmp_path / "kept")
    before = contents(tmp_path / "kept")
    packed.pack(worked_on(tmp_path / "both", TABLES, INDEX), tmp_path / "kept")
    after = contents(tmp_path / "kept")
    assert {name: data for name, data in after.items() if name in before and name != packed.INDEX} == {
        name: data for name, data in before.items() if name != packed.INDEX
    }
    assert after.keys() - before.keys() == {"packed/seed-1.json.xz"}


def test_what_is_packed_otherwise_by_another_library_stays(tmp_path: Path) -> None:
    source, kept = worked_on(tmp_path / "work", TABLES, INDEX), tmp_path / "kept"
    packed.pack(source, kept)
    path = packed.seed_path(kept, 1)
    other = lzma.compress(lzma.decompress(path.read_bytes()), preset=0, check=lzma.CHECK_CRC32)
    assert other != path.read_bytes()
    path.write_bytes(other)
    packed.pack(source, kept)
    assert path.read_bytes() == other


def test_what_is_no_longer_measured_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    packed.pack(worked_on(tmp_path / "both", TABLES, INDEX), kept)
    one = {name: [row for row in rows if row["seed"] == 0] for name, rows in TABLES.items()}
    packed.pack(worked_on(tmp_path / "one", one, INDEX[:2]), kept)
    assert packed.read_tables(kept) == dict(sorted(one.items()))
    assert not packed.seed_path(kept, 1).exists()


def broken(data: bytes) -> dict[str, bytes]:
    return {
        "cut": data[:-9],
        "longer": data + b"\0",
        "twice": data * 2,
        "no xz": b"[]",
        "other rows": lzma.compress(b'{"scores": [], "runs": []}'),
        "a part more": lzma.compress(b'{"scores": [{"value": 1e-300}], "runs": []}\n{}\n'),
        "no part": lzma.compress(b""),
        "no mapping": lzma.compress(b"[]"),
        "no JSON": lzma.compress(b"{"),
    }


@pytest.mark.parametrize("how", broken(b""))
def test_a_seed_that_is_not_whole_is_damage(tmp_path: Path, how: str) -> None:
    kept = tmp_path / "kept"
    packed.pack(worked_on(tmp_path / "work", TABLES, INDEX), kept)
    path = packed.seed_path(kept, 1)
    path.write_bytes(broken(path.read_bytes())[how])
    with pytest.raises(DamagedError, match=r"seed-1\.json\.xz: "):
        packed.read_tables(kept)


def test_a_missing_seed_is_damage(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    packed.pack(worked_on(tmp_path / "work", TABLES, INDEX), kept)
    packed.seed_path(kept, 0).unlink()
    with pytest.raises(DamagedError, match="seed-0"):
        packed.read_tables(kept)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    packed.pack(worked_on(tmp_path / "work", TABLES, INDEX), kept)
    monkeypatch.setattr(packed, "MOST_BYTES", 20)
    monkeypatch.setattr(packed.disk, "read_bytes", lambda path, **options: path.read_bytes())
    with pytest.raises(Exception, match="unpacks to more than 20 bytes"):
        list(packed.seed_parts(packed.seed_path(kept, 0)))


@pytest.mark.parametrize("count", [0, 3])
def test_an_index_that_does_not_fit_its_tables_is_damage(tmp_path: Path, count: int) -> None:
    index = [*INDEX[:2], {**INDEX[2], "rows": {"scores": count, "runs": 0}}]
    with pytest.raises(DamagedError, match=r"parts\.jsonl: "):
        packed.pack(worked_on(tmp_path / "work", TABLES, index), tmp_path / "kept")
