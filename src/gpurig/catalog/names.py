"""GPU names: from any spelling (cloud, driver, benchmark, person) to exact parts of the catalogue.

A name is read as a model, and optionally a memory size and a form: ``NVIDIA A100-SXM4-80GB``, ``a100 80gb sxm`` and
``A100-80GB-SXM`` all say (a100, 80, sxm). What a name leaves open stays open: ``A100`` is four parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpurig.catalog.files import DATA_DIR, read_table
from gpurig.errors import InputError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpurig.model.gpu import Gpu

ALIAS_COLUMNS = ("alias", "gpu_ids", "source", "compiled_on")
MEMORY_TOLERANCE = 0.04  # providers write 79.6 or 93.6 GB for the labels 80 and 94

_NOISE = frozenset(
    [
        "nvidia",
        "geforce",
        "tesla",
        "quadro",
        "amd",
        "instinct",
        "radeon",
        "gpu",
        "design",
        "with",
        "edition",
        "generation",
        "blackwell",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
    ]
)
_FORMS = {
    "sxm": "sxm", "sxm2": "sxm2", "sxm3": "sxm3", "sxm4": "sxm4", "sxm5": "sxm5", "sxm6": "sxm", "pcie": "pcie",
    "pci": "pcie", "nvl": "nvl", "server": "server", "workstation": "workstation", "ws": "workstation",
}  # fmt: skip
_MEMORY = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*gi?b?(?![\w.])")
_PARENTHESES = re.compile(r"\([^)]*\)")


@dataclass(frozen=True, slots=True)
class ParsedName:
    """A GPU name taken apart. None: the name does not say."""

    model: str  # lower case, letters and digits only: "rtx3090ti"
    memory_gb: float | None
    form: str | None  # "sxm", "sxm4", "pcie", "nvl", "server", "workstation"


@cache
def parse_name(name: str) -> ParsedName:
    """Take a GPU name apart. Never fails: an unknown model is only found out against the catalogue."""
    text = _PARENTHESES.sub(" ", name.lower()).replace("max-q", "maxq").replace("mobile", "laptop")
    text = re.sub(r"[-_/,+]", " ", text)
    memory = _MEMORY.search(text)
    memory_gb = float(memory.group(1)) if memory else None
    words = [word for word in _MEMORY.sub(" ", text).split() if word not in _NOISE]
    form = next((_FORMS[word] for word in words if word in _FORMS), None)
    model = "".join(word for word in words if word not in _FORMS)
    return ParsedName(re.sub(r"[^a-z0-9]", "", model), memory_gb, form)


def squash(name: str) -> str:
    """A name without case, blanks and punctuation, for comparing spellings."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def resolve(name: str, gpus: Mapping[str, Gpu]) -> tuple[Gpu, ...]:
    """All parts that a name may mean, in catalogue order; never empty.

    Raises:
        UnknownName: nothing in the catalogue has that name; suggests close ones.
    """
    exact = _exact_names(gpus)
    for key in (squash(name), squash(_PARENTHESES.sub("", name))):
        if key in exact:
            return tuple(gpus[gpu_id] for gpu_id in exact[key])
    parsed = parse_name(name)
    for model in _model_spellings(parsed.model):
        found = tuple(
            gpu
            for gpu in gpus.values()
            if parse_name(gpu.gpu_id).model == model and _memory_fits(parsed, gpu) and _form_fits(parsed, gpu)
        )
        if found:
            return found
    raise UnknownName("GPU", name, suggest(name, gpus), hint="run gpurig gpus to see all")


def resolve_part(name: str, gpus: Mapping[str, Gpu]) -> Gpu:
    """The one part that a name means.

    Raises:
        UnknownName: nothing in the catalogue has that name.
        InputError: the name leaves open which of several parts is meant; lists them.
    """
    found = resolve(name, gpus)
    if len(found) == 1:
        return found[0]
    raise InputError(
        f"{name!r} may be any of {len(found)} parts",
        details=tuple(f"{gpu.gpu_id}: {gpu.memory_gb:g} GB, {gpu.architecture}" for gpu in found),
        hint="name one of them exactly",
    )


def suggest(name: str, gpus: Mapping[str, Gpu], limit: int = 3) -> tuple[str, ...]:
    """Known names close to a mistyped one, closest first; a family where the parts differ only in form."""
    import difflib

    parsed = parse_name(name)
    same_model = [gpu.gpu_id for gpu in gpus.values() if parse_name(gpu.gpu_id).model in _model_spellings(parsed.model)]
    if same_model:  # the model exists, with another memory size or form
        return tuple(same_model[:limit])
    known: dict[str, str] = {}
    for gpu in gpus.values():
        known.setdefault(squash(gpu.family), gpu.family)
        known.setdefault(parse_name(gpu.gpu_id).model, gpu.family)
    close = difflib.get_close_matches(parsed.model or squash(name), known, n=2 * limit, cutoff=0.5)
    return tuple(dict.fromkeys(known[key] for key in close))[:limit]


def part_of_label(label: str, memory_gb: float | None, gpus: Mapping[str, Gpu]) -> tuple[str | None, str]:
    """Exact part (or None where the label leaves the form open) and family of a provider's GPU label.

    `memory_gb` per GPU narrows a label that does not state it.

    Raises:
        UnknownName: nothing in the catalogue has that name and memory, or the family stays open.
    """
    found = resolve(label, gpus)
    if memory_gb is not None:
        close = tuple(gpu for gpu in found if abs(gpu.memory_gb - memory_gb) <= 0.1 * gpu.memory_gb)
        found = close or found
    families = {gpu.family for gpu in found}
    if len(families) > 1:
        raise UnknownName("GPU", label, tuple(sorted(families)))
    return (found[0].gpu_id if len(found) == 1 else None), found[0].family


def families_of(parts: Iterable[Gpu]) -> frozenset[str]:
    """The families of some parts, to match offers that do not state the form."""
    return frozenset(gpu.family for gpu in parts)


def _model_spellings(model: str) -> tuple[str, ...]:
    """A model as written, then with the series prefix that people leave out (3090, A6000, 1080ti)."""
    return (model, f"rtx{model}", f"gtx{model}")


def _memory_fits(parsed: ParsedName, gpu: Gpu) -> bool:
    return parsed.memory_gb is None or abs(parsed.memory_gb - gpu.memory_gb) <= MEMORY_TOLERANCE * gpu.memory_gb


def _form_fits(parsed: ParsedName, gpu: Gpu) -> bool:
    form = parse_name(gpu.gpu_id).form
    return (
        parsed.form is None or form is None or form == parsed.form or (parsed.form == "sxm" and form.startswith("sxm"))
    )


def _exact_names(gpus: Mapping[str, Gpu]) -> dict[str, tuple[str, ...]]:
    """Squashed part ids, families and packaged aliases to part ids."""
    names: dict[str, tuple[str, ...]] = {}
    for alias, ids, *_ in read_table(DATA_DIR / "gpu_aliases.csv", ALIAS_COLUMNS):
        names[squash(alias)] = tuple(gpu_id for gpu_id in ids.split() if gpu_id in gpus)
    for gpu in gpus.values():
        key = squash(gpu.family)
        names[key] = (*names.get(key, ()), gpu.gpu_id)
    names.update(
        {squash(gpu.gpu_id): (gpu.gpu_id,) for gpu in gpus.values() if squash(gpu.gpu_id) != squash(gpu.family)}
    )
    return names
