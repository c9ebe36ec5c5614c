"""Who a run is: its id, its row in `runs`, what is known of its devices, and whether it was ingested before."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import duckdb

from traces.contract import SCHEMA_VERSION
from traces.manifest import RunManifest
from traces.rows import first_row
from traces.store import named_sql

_EPOCH_2000_NS = 946_684_800_000_000_000
_NO_IDENTIFIER = re.compile(r"[^\w.+-]+", re.ASCII)
# What the torch profiler says it recorded beside the launches: each slows the host (sql/health_recording_cost.sql).
_RECORDED = ("record_shapes", "with_stack", "profile_memory", "with_modules")
_VENDORS = (("nvidia", "nvidia"), ("amd", "amd"), ("instinct", "amd"), ("radeon", "amd"), ("intel", "intel"))


def already_ingested(con: duckdb.DuckDBPyConnection, hashes: Sequence[str | None]) -> str | None:
    """Id of the run of this database that was made from exactly these contents; None where there is none."""
    wanted = sorted(item for item in hashes if item is not None)
    if not wanted or len(wanted) != len(hashes):
        return None
    row = first_row(
        con.execute(
            "SELECT run_id FROM sources GROUP BY run_id HAVING list_sort(list(sha256)) = ?::VARCHAR[] LIMIT 1", [wanted]
        )
    )
    return str(row[0]) if row else None


def unique_run_id(con: duckdb.DuckDBPyConnection, wanted: str) -> str:
    """`wanted`, or with a number behind it where the database has a run of that id already."""
    wanted = _NO_IDENTIFIER.sub("-", wanted)[:80] or "run"  # it is printed, and typed behind a '#'
    taken = {row[0] for row in con.execute("SELECT run_id FROM runs").fetchall()}
    candidate, number = wanted, 2
    while candidate in taken:
        candidate, number = f"{wanted}-{number}", number + 1
    return candidate


def describe_run(con: duckdb.DuckDBPyConnection, run_id: str, manifest: RunManifest | None, name: str) -> None:
    """Write the rows of `runs` (`name` is what a person calls it) and `sources`, and what is known of the devices."""
    con.execute(named_sql("store_sources"))
    metas = [json.loads(row[0]) for row in con.execute(
        "SELECT meta FROM stage.sources WHERE role = 'trace' ORDER BY rank, src"
    ).fetchall() if row[0]]  # fmt: skip
    _describe_devices(con, run_id, metas, manifest)
    window = _window(con, run_id)
    engine = _engine(con, metas, manifest)
    row = {
        "run_id": run_id,
        "name": name,
        "created_ns": manifest.created_ns if manifest else time.time_ns(),
        "source": manifest.source if manifest else "ingest",
        "engine": engine,
        "engine_version": manifest.engine_version if manifest else _engine_version(metas),
        "device_kind": _device_kind(con, run_id, metas, manifest),
        "model": manifest.model if manifest else None,
        "dtype": manifest.dtype if manifest else None,
        "clock": "epoch" if window[0] is not None and window[0] > _EPOCH_2000_NS else "recording",
        "window_start_ns": window[0],
        "window_end_ns": window[1],
        "config": json.dumps(_config(con, metas, manifest)),
        "schema_version": SCHEMA_VERSION,
    }
    con.execute(f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))


def _window(con: duckdb.DuckDBPyConnection, run_id: str) -> tuple[int | None, int | None]:
    """Of the devices; else of the steps; else of the sensors, where nothing else was recorded."""
    for columns, table in (
        ("min(window_start_ns), max(window_end_ns)", "devices"),
        ("min(host_start_ns), max(host_end_ns)", "steps"),
        ("min(ts_ns), max(ts_ns)", "telemetry"),
    ):
        row = first_row(con.execute(f"SELECT {columns} FROM {table} WHERE run_id = ?", [run_id]))
        if row is not None and row[0] is not None:
            return row[0], row[1]
    return None, None


def _engine(con: duckdb.DuckDBPyConnection, metas: Sequence[dict[str, Any]], manifest: RunManifest | None) -> str:
    if manifest is not None:
        return manifest.engine
    row = first_row(
        con.execute(
            "SELECT l.engine FROM stage.label_event AS e JOIN stage.label AS l USING (labels) WHERE l.engine IS NOT NULL "
            "GROUP BY ALL ORDER BY count(*) DESC LIMIT 1"
        )
    )
    if row:
        return str(row[0])
    return "vllm" if any("vllm_version" in meta for meta in metas) else "unknown"


def _engine_version(metas: Sequence[dict[str, Any]]) -> str | None:
    return next((str(meta["vllm_version"]) for meta in metas if "vllm_version" in meta), None)


def _device_kind(
    con: duckdb.DuckDBPyConnection, run_id: str, metas: Sequence[dict[str, Any]], manifest: RunManifest | None
) -> str | None:
    if manifest is not None:
        return manifest.device_kind
    if any(key.startswith(("hip_", "roctracer")) for meta in metas for key in meta):
        return "hip"
    if any(key.startswith(("cuda_", "cupti")) for meta in metas for key in meta):
        return "cuda"
    kinds = {row[0] for row in con.execute("SELECT DISTINCT kind FROM kernels WHERE run_id = ?", [run_id]).fetchall()}
    if kinds == {"cpu_op"}:
        return "cpu"
    vendors = {
        row[0] for row in con.execute("SELECT DISTINCT vendor FROM devices WHERE run_id = ?", [run_id]).fetchall()
    }
    if not vendors and not kinds:  # sensors alone
        sources = {
            row[0] for row in con.execute("SELECT DISTINCT source FROM sensors WHERE run_id = ?", [run_id]).fetchall()
        }
        return "cuda" if sources & {"nvml", "nvidia-smi", "dcgm", "prometheus"} else "cpu" if sources else None
    return {"nvidia": "cuda", "amd": "hip"}.get(next(iter(vendors - {None}), ""))


def _describe_devices(
    con: duckdb.DuckDBPyConnection, run_id: str, metas: Sequence[dict[str, Any]], manifest: RunManifest | None
) -> None:
    properties: dict[int, dict[str, Any]] = {}
    for meta in metas:
        listed = meta.get("deviceProperties")
        for item in listed if isinstance(listed, list) else []:
            if isinstance(item, dict) and isinstance(item.get("id"), int):
                properties.setdefault(item["id"], item)
    on_cpu = first_row(con.execute("SELECT count(*) FROM kernels WHERE run_id = ? AND kind = 'cpu_op'", [run_id]))
    name: str | None
    vendor: str | None
    memory: int | None
    for (device,) in con.execute("SELECT DISTINCT device FROM devices WHERE run_id = ?", [run_id]).fetchall():
        if on_cpu and on_cpu[0]:
            name = manifest.device_name if manifest else None
            vendor, memory = "cpu", None
        else:
            facts = properties.get(device, {})
            name = str(facts.get("name") or "") or (manifest.device_name if manifest else None)
            vendor, memory = _vendor(name, metas), _integer(facts.get("totalGlobalMem"))
        con.execute(
            "UPDATE devices SET name = ?, vendor = ?, memory_bytes = ? WHERE run_id = ? AND device = ?",
            [name, vendor, memory, run_id, device],
        )


def _vendor(name: str | None, metas: Sequence[dict[str, Any]]) -> str | None:
    for word, vendor in _VENDORS:
        if name and word in name.lower():
            return vendor
    if any(key.startswith(("hip_", "roctracer")) for meta in metas for key in meta):
        return "amd"
    if any(key.startswith(("cuda_", "cupti")) for meta in metas for key in meta):
        return "nvidia"
    return None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _config(
    con: duckdb.DuckDBPyConnection, metas: Sequence[dict[str, Any]], manifest: RunManifest | None
) -> dict[str, Any]:
    """The manifest of our own runs, facts of the recording otherwise; `model_config` and `engine_facts` of the ledger."""
    kept = asdict(manifest) if manifest else _facts(metas)
    for meta in metas if manifest else ():
        kept |= {key: meta[key] for key in _RECORDED if key in meta}
    row = first_row(
        con.execute(
            "SELECT text FROM stage.ledger_marks WHERE kind = 'header' AND text IS NOT NULL ORDER BY ts_ns LIMIT 1"
        )
    )
    if row is None:
        return kept
    try:
        header = json.loads(row[0])
    except json.JSONDecodeError:
        return kept
    if isinstance(header, dict):
        kept["model_config"] = header.pop("model", None)
        kept["engine_facts"] = {key: value for key, value in header.items() if key not in ("kind", "pid", "ts", "mono")}
    return kept


def _facts(metas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Facts of a foreign recording worth keeping: versions and the process group; never host names or paths."""
    kept: dict[str, Any] = {}
    for meta in metas:
        for key, value in meta.items():
            if key.endswith("_version") or key in (
                "distributedInfo",
                "deviceProperties",
                *_RECORDED,
            ):
                kept.setdefault(key, value)
    return kept
