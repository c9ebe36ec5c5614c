"""What accelerators can do at most: `hardware.toml` as values. Rates per element type, and how sure each cell is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from analyzers.costs.roof import Peaks

GIB = 1 << 30
# A driver shows less than the nominal size (error correction takes 1/16 of GDDR), hardly ever more.
_MEMORY_LOW, _MEMORY_HIGH = 0.90, 1.02
_BRANDS = re.compile(r"\b(?:nvidia|amd|tesla|geforce|instinct|radeon)\b|\((?:r|tm)\)|[^a-z0-9]+")
_DTYPES: dict[str, str] = {
    "fp32": "fp32", "float32": "fp32", "float": "fp32", "tf32": "tf32", "bf16": "bf16", "bfloat16": "bf16",
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "int8": "int8", "signed char": "int8", "i8": "int8",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8", "float8_e5m2fnuz": "fp8", "fp4": "fp4", "mxfp4": "fp4", "nvfp4": "fp4",
    "float4_e2m1fn_x2": "fp4",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as its driver shows it. `flops` holds FLOP/s per dtype, dense, accumulated in 32 bits."""

    name: str  # our key
    vendor: str  # 'nvidia' | 'amd'
    arch: str
    units: int | None  # streaming multiprocessors or compute units
    memory_bytes: int
    bandwidth: float  # bytes/s
    flops: Mapping[str, float]  # 'fp32', 'fp32_matrix', 'tf32', 'bf16', 'fp16', 'fp8', 'int8', 'fp4'
    achievable: Mapping[str, float]  # FLOP/s that a vendor's own library was seen to reach
    tdp_w: float
    idle_w: float | None
    loaded_idle_w: float | None
    link_bytes_s: float | None  # to other devices, both directions together; 0: none beside PCIe
    pcie_bytes_s: float | None  # in one direction
    checked: str  # 'clock' | 'sheet': whether an independent clock confirms the 16-bit rate
    uncertain: tuple[str, ...]  # cells with one source only, or with sources that differ
    remarks: Mapping[str, str]  # per cell: what other sources say
    driver_names: tuple[str, ...]
    aliases: tuple[str, ...]
    other_memory_bytes: tuple[int, ...]  # variants with the same rates
    other_units: tuple[int, ...]  # as some drivers count
    textbook: Mapping[str, float]  # rounded rates of teaching material: per dtype, and 'bandwidth'
    note: str

    @property
    def peer_bytes_s(self) -> float | None:
        """Bytes/s to other devices in one direction: over the links between them, over PCIe where there are none."""
        if self.link_bytes_s is None:
            return None
        return self.link_bytes_s / 2 if self.link_bytes_s else self.pcie_bytes_s

    def counts(self, units: int) -> bool:
        """Whether a driver may count this many units for it."""
        return self.units is None or units == self.units or units in self.other_units

    def holds(self, memory_bytes: int) -> bool:
        """Whether a driver may show this much memory for it."""
        sizes = (self.memory_bytes, *self.other_memory_bytes)
        return any(_MEMORY_LOW * size <= memory_bytes <= _MEMORY_HIGH * size for size in sizes)


@cache
def catalogue() -> tuple[Device, ...]:
    """All known devices, in the file's order."""
    text = resources.files("analyzers").joinpath("hardware.toml").read_text(encoding="utf-8")
    return tuple(_device(name, entry) for name, entry in tomllib.loads(text).items())


def canonical_dtype(name: str | None) -> str | None:
    """'fp32', 'tf32', 'bf16', 'fp16', 'fp8', 'int8' or 'fp4' for any spelling in engines and recordings; else None."""
    if not name:
        return None
    return _DTYPES.get(name.strip().lower().removeprefix("torch.").removeprefix("c10::"))


def flops_of(device: Device, dtype: str | None) -> float | None:
    """FLOP/s in `dtype`; None where it is not known or the device has no units for it."""
    key = canonical_dtype(dtype)
    if key == "fp32":
        return device.flops.get("fp32_matrix", device.flops.get("fp32"))
    return None if key is None else device.flops.get(key)


def peaks_of(device: Device, dtype: str | None) -> Peaks | None:
    """Datasheet rates for work in `dtype`; None where the device has no units for it or the type is not known."""
    flops = flops_of(device, dtype)
    return None if flops is None else Peaks(flops_per_s=flops, bytes_per_s=device.bandwidth)


def called(name: str | None) -> tuple[Device, ...]:
    """Devices whose driver gives them this name."""
    key = None if name is None else plain_name(name)
    return tuple(each for each in catalogue() if key in {plain_name(known) for known in each.driver_names})


def link_rate(name: str | None) -> float | None:
    """Bytes/s in one direction from the device of this driver's name to others; None where that is not known."""
    rates = {each.peer_bytes_s for each in called(name)}
    return rates.pop() if len(rates) == 1 else None


def plain_name(name: str) -> str:
    """A name without brand words, case and punctuation."""
    return _BRANDS.sub("", name.lower())


def _device(name: str, entry: Mapping[str, Any]) -> Device:
    remarks = {**entry.get("rejected", {}), **entry.get("disputed", {})}
    book = {key: float(value) * 1e12 for key, value in entry.get("textbook", {}).items() if key != "bandwidth_gb_s"}
    if "textbook" in entry:
        book["bandwidth"] = float(entry["textbook"]["bandwidth_gb_s"]) * 1e9
    return Device(
        name=name,
        vendor=entry["vendor"],
        arch=entry["arch"],
        units=entry.get("units"),
        memory_bytes=round(entry["memory_gib"] * GIB),
        bandwidth=entry["bandwidth_gb_s"] * 1e9,
        flops={dtype: rate * 1e12 for dtype, rate in entry["tflops"].items()},
        achievable={dtype: rate * 1e12 for dtype, rate in entry.get("achievable_tflops", {}).items()},
        tdp_w=float(entry["tdp_w"]),
        idle_w=entry.get("idle_w"),
        loaded_idle_w=entry.get("loaded_idle_w"),
        link_bytes_s=entry["link_gb_s"] * 1e9 if "link_gb_s" in entry else None,
        pcie_bytes_s=entry["pcie_gb_s"] * 1e9 if "pcie_gb_s" in entry else None,
        checked=entry["checked"],
        uncertain=tuple(dict.fromkeys([*entry.get("unverified", ()), *entry.get("disputed", {})])),
        remarks=remarks,
        driver_names=tuple(entry["names"]),
        aliases=tuple(entry.get("aliases", ())),
        other_memory_bytes=tuple(round(size * GIB) for size in entry.get("other_memory_gib", ())),
        other_units=tuple(entry.get("other_units", ())),
        textbook=book,
        note=entry.get("note", ""),
    )
