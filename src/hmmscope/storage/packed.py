"""The tables of an experiment: plain files while the experiment runs, and compressed files in an archive.

OUT/tables/<name>.jsonl                 plain: the rows of a table as JSON lines
OUT/tables/<name>.jsonl.xz              archive without seeds: the same bytes, compressed
OUT/packed/seed-<n>.json.xz             archive with seeds: a line for each part (models measured together) of seed n
OUT/parts.jsonl                         number of rows of each part in each table, in order
"""

import lzma
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, InputError
from hmmscope.storage import disk, store

TABLES, PACKED, INDEX = "tables", "packed", "parts.jsonl"
#: Maximum size of a decompressed table.
MOST_BYTES = 1 << 30

Row = dict[str, Any]


def read_tables(folder: Path) -> dict[str, list[Row]]:
    if (folder / TABLES).is_symlink() or (folder / PACKED).is_symlink():
        raise DamagedError(f"{folder / TABLES}: is a symbolic link, which is not followed")
    if (folder / PACKED).is_dir():
        return _read_parts(folder)
    found = {path.name.partition(".jsonl")[0]: path for path in folder.glob(f"{TABLES}/*.jsonl*") if _is_table(path)}
    return {name: _read_table(found[name]) for name in sorted(found)}


def is_packed(folder: Path) -> bool:
    return (folder / PACKED).is_dir() or any((folder / TABLES).glob("*.jsonl.xz"))


def seed_path(folder: Path, seed: int) -> Path:
    return folder / PACKED / f"seed-{seed}.json.xz"


def pack(source: Path, out: Path) -> None:
    tables = read_tables(source)
    index = store.read_table(source / INDEX) if os.path.lexists(source / INDEX) else None
    if index is None:
        wanted = {out / TABLES / f"{name}.jsonl.xz": store.table_bytes(rows, name) for name, rows in tables.items()}
    else:
        wanted = dict.fromkeys((seed_path(out, row["seed"]) for row in index), b"")
        for row, own in zip(index, by_part(index, tables, source), strict=True):
            wanted[seed_path(out, row["seed"])] += store.dump(own, row["part"]) + b"\n"
        store.make_folder(out)
        store.write_table(out / INDEX, index)
    for path, data in wanted.items():
        if not os.path.lexists(path) or _unpacked(path) != data:
            store.make_folder(path.parent)
            store.write_bytes(path, lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    for pattern in (f"{TABLES}/*", f"{PACKED}/*"):
        for path in sorted(out.glob(pattern)):
            if path not in wanted:
                store.remove_file(path)


def by_part(
    index: Sequence[Mapping[str, Any]], tables: Mapping[str, Sequence[Row]], where: Path
) -> list[dict[str, Any]]:
    begin = dict.fromkeys((name for row in index for name in row["rows"]), 0)
    parts = []
    for row in index:
        own = {name: tables[name][begin[name] : begin[name] + count] for name, count in row["rows"].items()}
        begin |= {name: begin[name] + count for name, count in row["rows"].items()}
        seeds = {each.get("seed") for rows in own.values() for each in rows}
        if seeds - {row["seed"]} or any(len(own[name]) != count for name, count in row["rows"].items()):
            raise DamagedError(
                f"{where / INDEX}: counts the rows {row['rows']} for part {row['part']}, seed {row['seed']}, but the "
                f"tables differ; restore {where} from a copy"
            )
        parts.append(
            {name: [{k: v for k, v in each.items() if k != "seed"} for each in rows] for name, rows in own.items()}
        )
    if any(len(tables[name]) != count for name, count in begin.items()):
        raise DamagedError(f"{where / INDEX}: counts fewer rows than the tables have; restore {where} from a copy")
    return parts


def _read_parts(folder: Path) -> dict[str, list[Row]]:
    index = store.read_table(folder / INDEX)
    tables: dict[str, list[Row]] = {name: [] for name in sorted({name for row in index for name in row["rows"]})}
    parts = {seed: seed_parts(seed_path(folder, seed)) for seed in {row["seed"]: None for row in index}}
    for row in index:
        part = next(parts[row["seed"]], None)
        if not isinstance(part, dict) or {name: len(rows) for name, rows in part.items()} != row["rows"]:
            raise _other(folder, row["seed"])
        for name, rows in part.items():
            tables[name] += [{"seed": row["seed"]} | each for each in rows]
    for seed, rest in parts.items():
        if next(rest, None) is not None:
            raise _other(folder, seed)
    return tables


def _other(folder: Path, seed: int) -> DamagedError:
    return DamagedError(
        f"{seed_path(folder, seed)}: does not contain the rows listed in {INDEX}; restore both files from a copy"
    )


def seed_parts(path: Path) -> Iterator[Any]:
    """Yield, for each part in the archive of a seed, the part's rows by table name."""
    return (store.parse(line, str(path)) for line in _unpacked(path).splitlines())


def _is_table(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.xz")) and not path.name.startswith(".")


def _read_table(path: Path) -> list[Row]:
    return store.read_table(path) if path.suffix == ".jsonl" else store.parse_table(_unpacked(path), str(path))


def _unpacked(path: Path) -> bytes:
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=1 << 28)
    try:
        data = unpacker.decompress(disk.read_bytes(path, managed=True, limit=MOST_BYTES), MOST_BYTES)
    except lzma.LZMAError as error:
        raise DamagedError(f"{path}: is not a complete xz file ({error})") from error
    if not unpacker.eof:
        more = len(data) >= MOST_BYTES
        if more:
            raise InputError(f"{path}: unpacks to more than {MOST_BYTES:,} bytes")
        raise DamagedError(f"{path}: is not a complete xz file (it ends too early)")
    if unpacker.unused_data:
        raise DamagedError(f"{path}: has data after the end of its xz stream")
    return data
