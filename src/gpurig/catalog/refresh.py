"""Newer price lists: download, check, store atomically. On any failure what was there before is kept.

A stored list replaces all packaged offers of its provider. Lists lie as CSV in `files.user_data_dir()`/offers, one per
provider; deleting a file brings the packaged prices back.
"""

from __future__ import annotations

import contextlib
import csv
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.catalog.files import user_data_dir
from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.offers import OFFER_COLUMNS, forget_offers, instance_parts, load_offers, packaged_offers
from gpurig.catalog.pricelist import PriceList, PriceRow, parse_price_list
from gpurig.errors import BadFile, DownloadFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import date

    from gpurig.model.offer import Offer

TIMEOUT_S = 30.0
MAX_BYTES = 64 * 2**20
MIN_FRACTION_OF_ROWS = 0.5  # a list that lost more than half of a provider's offers is taken for a damaged one
_CHUNK_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Download:
    """A price list as received."""

    text: str
    as_of: date | None  # the server's Last-Modified; None: not stated


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did for one provider."""

    provider: str
    path: Path
    num_offers: int
    num_replaced: int  # offers of that provider known before
    as_of: date | None


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """What a refresh did, and the rows that it could not use, counted by reason."""

    refreshed: tuple[Refreshed, ...]
    skipped: Mapping[str, int]


def refresh(
    source: str,
    *,
    today: date,
    provider: str | None = None,
    data_dir: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    allow_shrink: bool = False,
) -> RefreshReport:
    """Replace a provider's offers by those of a price list.

    Args:
        source: URL (http, https) or path of a SkyPilot vms.csv or a CSV in our own columns.
        today: Day of the prices where neither the file nor the server gives one.
        provider: Whose prices they are; needed for SkyPilot files unless the path ends in PROVIDER/vms.csv.
        data_dir: Where lists are stored; default: the user's.
        timeout_s: Limit for the whole download.
        allow_shrink: Accept a list with less than half of the offers known before.

    Raises:
        DownloadFailed: not reached, an error status, cut short, too slow, too large, or not storable.
        BadFile: received, and not a price list or with malformed rows; lists all faults.
    """
    folder = (data_dir or user_data_dir()) / "offers"
    known = _known_offers(data_dir)
    with _kept_note(known):
        download = fetch(source, timeout_s=timeout_s)
        prices = parse_price_list(
            download.text,
            origin=source,
            provider=provider or _provider_of(source, known),
            day=download.as_of or today,
            gpus=load_gpus(),
            parts=instance_parts(known),
        )
        by_provider = _by_provider(prices)
        for name, rows in by_provider.items():
            _check_size(name, len(rows), known, allow_shrink=allow_shrink)
        refreshed = tuple(
            Refreshed(
                provider=name,
                path=store(rows, folder, name),
                num_offers=len(rows),
                num_replaced=sum(offer.provider == name for offer in known),
                as_of=max((row.snapshot_date for row in rows if row.snapshot_date), default=None),
            )
            for name, rows in by_provider.items()
        )
    forget_offers()
    return RefreshReport(refreshed, prices.skipped)


def fetch(source: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES) -> Download:
    """Read a price list from a URL or a path, whole or not at all.

    Raises:
        DownloadFailed: see `refresh`.
    """
    if not source.startswith(("http://", "https://")):
        return _read_local(source)
    import http.client
    import urllib.error
    import urllib.request

    request = urllib.request.Request(source, headers={"User-Agent": "gpurig", "Accept-Encoding": "identity"})
    deadline = time.monotonic() + timeout_s
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            body = _read_body(response, source, deadline, max_bytes)
            modified = response.headers.get("Last-Modified")
    except urllib.error.HTTPError as error:
        raise _failed(source, f"the server answered {error.code} {error.reason}") from error
    except TimeoutError as error:
        raise _failed(source, f"no answer within {timeout_s:g} s") from error
    except urllib.error.URLError as error:
        slow = isinstance(error.reason, TimeoutError)
        raise _failed(source, f"no answer within {timeout_s:g} s" if slow else str(error.reason)) from error
    except http.client.IncompleteRead as error:
        raise _failed(
            source, f"cut short: {len(error.partial)} bytes came, {error.expected} more were announced"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(source, str(error) or type(error).__name__) from error
    text = _text(body, source)
    if not text.endswith("\n"):
        raise _failed(source, "cut short: the last line does not end")
    return Download(text, _last_modified(modified))


def store(rows: Iterable[PriceRow], folder: Path, provider: str) -> Path:
    """Write a provider's list: to a temporary file in the same folder, flushed to disk, then renamed over the old one.

    Raises:
        DownloadFailed: the folder cannot be written; the old list is untouched.
    """
    path = folder / f"{provider}.csv"
    temporary: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{provider}-", suffix=".tmp", dir=folder)
        temporary = Path(name)
        with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(OFFER_COLUMNS)
            writer.writerows(row.cells() for row in rows)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise DownloadFailed(
            f"cannot store the price list in {folder}",
            details=(str(error),),
            hint="set GPURIG_HOME to a folder that you may write to",
        ) from error
    return path


def _known_offers(data_dir: Path | None) -> tuple[Offer, ...]:
    """The offers in use; the packaged ones where a stored list is damaged, so that a refresh can repair it."""
    try:
        return load_offers(data_dir)
    except BadFile:
        return packaged_offers()


def _read_local(source: str) -> Download:
    try:
        path = Path(source.removeprefix("file://"))
        return Download(_text(path.read_bytes(), source), None)
    except OSError as error:
        raise _failed(source, error.strerror or str(error)) from error


def _read_body(response: object, source: str, deadline: float, max_bytes: int) -> bytes:
    """The body in pieces, so that a server that drips bytes meets the deadline too."""
    import http.client

    if not isinstance(response, http.client.HTTPResponse):
        raise _failed(source, "not an HTTP answer")
    chunks: list[bytes] = []
    size = 0
    expected = response.length
    while chunk := response.read1(_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise _failed(source, f"larger than {max_bytes // 2**20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    if expected is not None and size < expected:
        raise http.client.IncompleteRead(b"".join(chunks), expected - size)
    return b"".join(chunks)


def _text(body: bytes, source: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"{source} is not a text in UTF-8", details=(str(error),)) from error


def _last_modified(header: str | None) -> date | None:
    if header is None:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(header).date()
    except ValueError:
        return None


def _provider_of(source: str, known: Iterable[Offer]) -> str | None:
    """``…/aws/vms.csv`` is a list of aws, if aws is a provider."""
    parts = source.rstrip("/").split("/")
    name = parts[-2].lower() if len(parts) >= 2 else ""
    return name if any(offer.provider == name for offer in known) else None


def _by_provider(prices: PriceList) -> dict[str, list[PriceRow]]:
    rows: dict[str, list[PriceRow]] = {}
    for row in prices.rows:
        if not row.provider.replace("-", "").replace("_", "").isalnum():
            raise BadFile(f"{row.provider!r} is not a provider name", details=("letters, digits, - and _ only",))
        rows.setdefault(row.provider, []).append(row)
    return rows


def _check_size(provider: str, num_new: int, known: Iterable[Offer], *, allow_shrink: bool) -> None:
    num_known = sum(offer.provider == provider for offer in known)
    if num_new < MIN_FRACTION_OF_ROWS * num_known and not allow_shrink:
        raise DownloadFailed(
            f"the new list of {provider} has {num_new} offers, the one in use {num_known}",
            details=("a list that loses more than half is taken for a damaged one",),
            hint="add --allow-shrink if it is right",
        )


def _failed(source: str, why: str) -> DownloadFailed:
    return DownloadFailed(f"could not refresh offers from {source}", details=(why,))


@contextlib.contextmanager
def _kept_note(known: tuple[Offer, ...]) -> Iterator[None]:
    """Say in every failure that the old prices stay."""
    try:
        yield
    except (DownloadFailed, BadFile) as error:
        error.details = (*error.details, f"kept: the {len(known)} offers known before")
        raise
