"""The grammar of a workload's options: `key=value,key=value` into the frozen dataclass a workload declares.

A workload's options are a dataclass whose fields are made with `option(...)`. Values of kind 'seconds' are written as
seconds (`0.2`, `0.2s`) or milliseconds (`200ms`) and held as ns. In a value of kind 'text' a comma is written `%2C` and
a per cent sign `%25`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Protocol, TypeVar

from traces.errors import UsageProblem


class OptionsDataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


OptionsT = TypeVar("OptionsT", bound=OptionsDataclass)

_NS_PER_S = Decimal(1_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    key: str
    kind: str  # 'count' | 'seconds' | 'number' | 'choice' | 'text'
    minimum: float
    maximum: float
    choices: tuple[str, ...]
    check: Callable[[str], object] | None  # of a 'text': raises ValueError, whose text says what is wanted


def option(
    key: str,
    kind: str,
    default: float | str,
    *,
    minimum: float = 0,
    maximum: float = math.inf,
    choices: tuple[str, ...] = (),
    check: Callable[[str], object] | None = None,
) -> Any:
    """A dataclass field for the option `key`. Bounds are in the unit the user writes (seconds for 'seconds')."""
    rule = _Rule(key=key, kind=kind, minimum=minimum, maximum=maximum, choices=choices, check=check)
    value = int(Decimal(str(default)) * _NS_PER_S) if kind == "seconds" else default
    return field(default=value, metadata={"rule": rule})


def option_keys(options_type: type[OptionsDataclass]) -> tuple[str, ...]:
    """The keys a workload knows, sorted."""
    return tuple(sorted(_rule(item).key for item in fields(options_type)))


def parse_options(workload: str, options_type: type[OptionsT], text: str) -> OptionsT:
    """Options from `key=value,…`. Raises UsageProblem for unknown or repeated keys and for values out of bounds."""
    by_key = {_rule(item).key: item for item in fields(options_type)}
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in by_key:
            raise UsageProblem(
                f"unknown option {key!r} of workload {workload}; known: {', '.join(option_keys(options_type))}",
                hint=f"for example {workload}:{_example(by_key)}",
            )
        if not equals or not value:
            raise UsageProblem(f"option {key} of workload {workload} has no value", hint=f"write {key}=VALUE")
        if by_key[key].name in values:
            raise UsageProblem(f"option {key} of workload {workload} is given twice", hint="keep one of them")
        values[by_key[key].name] = _parse_value(workload, _rule(by_key[key]), value)
    return options_type(**values)


def with_options(spec: str, values: Mapping[str, object]) -> str:
    """`spec` with further `key=value`; those that are None are left out."""
    given = ",".join(f"{key}={escaped(str(value))}" for key, value in values.items() if value is not None)
    if not given:
        return spec
    name, colon, text = spec.strip().partition(":")
    return f"{name}:{text},{given}" if colon and text else f"{name}:{given}"


def escaped(text: str) -> str:
    """A text as the value of an option."""
    return text.replace("%", "%25").replace(",", "%2C")


def canonical(workload: str, options: OptionsDataclass) -> str:
    """The specification with every option written out, keys sorted: parses back to the same options.

    A text that is empty is left out, as no value can be written for it.
    """
    parts = []
    for item in sorted(fields(options), key=lambda item: _rule(item).key):
        value = getattr(options, item.name)
        if value == "":
            continue
        if _rule(item).kind == "seconds":
            value = format((Decimal(value) / _NS_PER_S).normalize(), "f")
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        elif _rule(item).kind == "text":
            value = escaped(value)
        parts.append(f"{_rule(item).key}={value}")
    return f"{workload}:{','.join(parts)}"


def _rule(item: Field[Any]) -> _Rule:
    rule = item.metadata["rule"]
    assert isinstance(rule, _Rule)
    return rule


def _example(by_key: dict[str, Field[Any]]) -> str:
    return ",".join(f"{key}={by_key[key].default}" for key in sorted(by_key) if _rule(by_key[key]).kind == "count")


def _parse_value(workload: str, rule: _Rule, text: str) -> int | float | str:
    if rule.kind == "choice":
        if text not in rule.choices:
            raise UsageProblem(
                f"option {rule.key} of workload {workload}: unknown {text!r}; known: {', '.join(rule.choices)}",
                hint=f"write {rule.key}={rule.choices[0]}",
            )
        return text
    if rule.kind == "text":
        return _parse_text(workload, rule, text.replace("%2C", ",").replace("%2c", ",").replace("%25", "%"))
    number = _decimal(text, rule.kind)
    if number is None or (rule.kind == "count" and number != number.to_integral_value()):
        wanted = {"count": "a whole number", "seconds": "seconds, such as 0.2 or 200ms", "number": "a number"}[
            rule.kind
        ]
        raise UsageProblem(
            f"option {rule.key} of workload {workload}: {text!r} is not {wanted}", hint=f"known bounds: {_bounds(rule)}"
        )
    if not rule.minimum <= number <= rule.maximum:
        raise UsageProblem(
            f"option {rule.key} of workload {workload}: {text} is out of bounds", hint=f"allowed: {_bounds(rule)}"
        )
    if rule.kind == "seconds":
        return int(number * _NS_PER_S)
    return int(number) if rule.kind == "count" else float(number)


def _parse_text(workload: str, rule: _Rule, text: str) -> str:
    try:
        if rule.check is not None:
            rule.check(text)
    except ValueError as error:
        raise UsageProblem(
            f"option {rule.key} of workload {workload}: {text!r} is not {error}", hint="see `docs/workloads.md`"
        ) from error
    return text


def _decimal(text: str, kind: str) -> Decimal | None:
    scale = Decimal(1)
    if kind == "seconds" and text.endswith("ms"):
        text, scale = text[:-2], Decimal("0.001")
    elif kind == "seconds":
        text = text.removesuffix("s")
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number * scale if number.is_finite() else None


def _bounds(rule: _Rule) -> str:
    upper = "" if math.isinf(rule.maximum) else f" to {rule.maximum:g}"
    return f"from {rule.minimum:g}{upper}"
