"""A user's own card, described by a TOML file: facts as the catalogue has them, checked all at once.

.. code-block:: toml

    [[gpu]]
    gpu_id = "MY-CARD"
    like = "RTX4090"            # take what is not said from this part
    memory_gb = 48
    memory_bandwidth_gb_per_s = 1008
"""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from gpurig.errors import BadFile
from gpurig.model.gpu import Gpu

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TEXT = frozenset(("gpu_id", "family", "vendor", "architecture", "chip", "memory_type", "notes"))
_WHOLE = frozenset(("cuda_cores", "sm_count", "tensor_cores", "pcie_lanes", "mig_max_instances"))
_DERIVED = frozenset(("source", "crosscheck", "compiled_on", "rentable", "isa", "usable_memory_origin"))
_KEYS = tuple(f.name for f in fields(Gpu) if f.name not in _DERIVED)
_USABLE_SHARE = 0.98  # of the label, where the file does not say: the median of measured cards


def read_own_cards(path: Path, gpus: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """The cards of a file by `gpu_id`.

    Raises:
        BadFile: the file cannot be read, is no TOML, or has faults; lists all of them.
    """
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFile(f"cannot read the card file {path}", details=(str(error),)) from error
    faults = [f"unknown key {key!r}: the file holds [[gpu]] tables" for key in table if key != "gpu"]
    entries = table.get("gpu")
    if not isinstance(entries, list) or not entries:
        faults.append("no [[gpu]] table")
        entries = []
    cards: dict[str, Gpu] = {}
    for number, entry in enumerate(entries, start=1):
        card = _card(f"gpu {number}", entry if isinstance(entry, dict) else {}, gpus, str(path), faults)
        if card is not None:
            cards[card.gpu_id] = card
    if faults:
        raise BadFile(
            f"{path}: {len(faults)} fault{'s' if len(faults) > 1 else ''}",
            details=tuple(faults),
            hint="see docs/guides/catalogue.md for the keys of a card file",
        )
    return cards


def _card(place: str, entry: Mapping[str, object], gpus: Mapping[str, Gpu], path: str, faults: list[str]) -> Gpu | None:
    before = len(faults)
    known = (*_KEYS, "like")
    for key in entry:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            faults.append(f"{place}: unknown key {key!r}" + (f"; did you mean {close[0]}?" if close else ""))
    like = entry.get("like")
    if not isinstance(like, str) or like not in gpus:
        close = difflib.get_close_matches(str(like), gpus, 2)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        faults.append(f"{place}: 'like' names a part of the catalogue (see gpurig gpus), not {like!r}{hint}")
    values = {key: _value(place, key, entry[key], faults) for key in _KEYS if key in entry}
    if not isinstance(values.get("gpu_id"), str):
        faults.append(f"{place}: gpu_id is missing")
    if len(faults) > before:
        return None
    values.setdefault("family", values["gpu_id"])
    if "memory_gb" in values and "usable_memory_gib" not in values:
        values["usable_memory_gib"] = _USABLE_SHARE * float(str(values["memory_gb"]))
    return replace(gpus[str(like)], **values, source=path, usable_memory_origin=f"stated: {path}", crosscheck="")  # type: ignore[arg-type]


def _value(place: str, key: str, value: object, faults: list[str]) -> object:
    if key == "compute_capability":
        parts = str(value).split(".")
        if len(parts) == 2 and all(part.isdigit() for part in parts):
            return int(parts[0]), int(parts[1])
        faults.append(f'{place}: compute_capability is written like "8.9", not {value!r}')
    elif key in _TEXT:
        if isinstance(value, str) and value:
            return value
        faults.append(f"{place}: {key} is a text, not {value!r}")
    elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        faults.append(f"{place}: {key} is a positive number, not {value!r}")
    elif key in _WHOLE and value != int(value):
        faults.append(f"{place}: {key} is a whole number, not {value!r}")
    else:
        return int(value) if key in _WHOLE else float(value)
    return None
