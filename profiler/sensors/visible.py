"""Which of the machine's GPUs an engine sees, and in which order: CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Sequence


def visible_indices(uuids: Sequence[str | None], setting: str | None) -> list[int]:
    """Indices of the driver's devices (whose `uuids` are given in its order) in the engine's order.

    As CUDA reads it: numbers or beginnings of UUIDs, up to the first that names no device. Numbers are taken as those
    of the driver, which holds for CUDA_DEVICE_ORDER=PCI_BUS_ID and wherever the GPUs are alike. Slices of a GPU (MIG)
    have no sensors of their own: then every device is watched.
    """
    everything = list(range(len(uuids)))
    if setting is None or "MIG" in setting:
        return everything
    chosen: list[int] = []
    for word in (item.strip() for item in setting.split(",")):
        index = _index_of(word, uuids)
        if index is None or index in chosen:
            break
        chosen.append(index)
    return chosen


def _index_of(word: str, uuids: Sequence[str | None]) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word) if int(word) < len(uuids) else None
    matches = [index for index, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid and uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None
