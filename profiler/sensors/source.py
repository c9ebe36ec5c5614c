"""What a kind of sensor delivers to the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device as its driver describes it; None where it does not say."""

    device: int  # ordinal as the engine counts
    source: str  # 'nvml' | 'rapl' | 'cpu'
    name: str | None = None
    uuid: str | None = None
    pci: str | None = None
    index: int | None = None  # ordinal as the driver counts
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    power_period_ns: int | None = None  # between changes of the power reading, as measured before sampling began

    def to_dict(self) -> dict[str, Any]:
        """For the header, without what is not known."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One sample of one device: columns of table `telemetry`, without those that are not known."""

    device: int
    ts_ns: int
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that happened to a series: 'gone', 'unsupported', 'failing' or 'reset'."""

    kind: str
    device: int
    text: str
    columns: tuple[str, ...] = ()


class Source(Protocol):
    """Devices of one kind."""

    name: str

    def prepare(self) -> list[DeviceFacts]:
        """Find the devices and what each offers; may take about a second. Raises SensorProblem where there is none."""
        ...

    def read(self) -> list[Reading]:
        """A sample of each device that is still there."""
        ...

    def notices(self) -> list[Notice]:
        """What happened since the last call."""
        ...

    def close(self) -> None: ...


class SensorProblem(Exception):
    """There is nothing to sample; the message says why."""
