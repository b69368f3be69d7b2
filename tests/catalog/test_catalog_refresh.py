"""A refresh replaces a provider's list whole or not at all. Against a real server on the loopback interface."""

from __future__ import annotations

import http.server
import socket
import threading
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING

import pytest

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.offers import forget_offers, load_offers
from gpurig.catalog.pricelist import parse_price_list
from gpurig.catalog.refresh import fetch, refresh
from gpurig.catalog.search import find_offers
from gpurig.errors import BadFile, DownloadFailed, GpurigError
from gpurig.model.offer import Currency

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TODAY = date(2026, 12, 1)
Answer = "Callable[[http.server.BaseHTTPRequestHandler], None]"

SKYPILOT = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
g4dn.xlarge,4,16,T4,1,"{'Gpus': [{'Name': 'T4', 'Count': 1.0, 'MemoryInfo': {'SizeInMiB': 16384}}]}",0.5,0.2,us-east-1,us-east-1a
g4dn.xlarge,4,16,T4,1,"{'Gpus': [{'Name': 'T4', 'Count': 1.0, 'MemoryInfo': {'SizeInMiB': 16384}}]}",0.5,0.15,us-east-1,us-east-1b
p4d.24xlarge,96,1152,A100,8,"{'Gpus': [{'Name': 'A100', 'MemoryInfo': {'SizeInMiB': 40960}}]}",21.0,,us-east-1,us-east-1a
p3.2xlarge,8,61,V100,1,,3.0,1.0,us-east-1,us-east-1a
m5.large,2,8,,,,0.1,0.05,us-east-1,us-east-1a
trn1.2xlarge,8,32,Trainium,1,,1.3,,us-east-1,us-east-1a
g5.xlarge,4,16,A10G,1,,,0.4,us-east-1,us-east-1a
"""
OWN = """\
provider,instance_type,region,gpu,gpu_count,vcpus,memory_gb,price_per_h,spot_price_per_h,currency,snapshot_date
newcloud,big,eu-1,A100-SXM4-80GB,8,128,1024,70.5,,CNY,2026-11-20
newcloud,part,,A10,0.5,8,64,0.4,0.2,USD,
"""


@contextmanager
def serving(answer: Answer) -> Iterator[str]:  # type: ignore[valid-type]
    """A server on a free loopback port that answers every GET with `answer`; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sends(body: bytes, *, status: int = 200, announced: int | None = None, modified: str | None = None) -> Answer:  # type: ignore[valid-type]
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if announced is not None:
            handler.send_header("Content-Length", str(announced))
        if modified:
            handler.send_header("Last-Modified", modified)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def whole(text: str) -> Answer:  # type: ignore[valid-type]
    body = text.encode()
    return sends(body, announced=len(body))


def _refresh(url: str, **options: object) -> object:
    return refresh(url, today=TODAY, allow_shrink=True, **options)  # type: ignore[arg-type]


def test_a_skypilot_list_replaces_the_offers_of_its_provider(user_folder: Path) -> None:
    before = load_offers()
    with serving(sends(SKYPILOT.encode(), announced=len(SKYPILOT), modified="Wed, 18 Nov 2026 10:00:00 GMT")) as url:
        report = refresh(f"{url}/catalogs/v8/aws/vms.csv", today=TODAY, allow_shrink=True)
    done = report.refreshed[0]
    assert (done.provider, done.num_offers, done.num_replaced, done.as_of) == ("aws", 3, 479, date(2026, 11, 18))
    assert dict(report.skipped) == {
        "further zones of a region": 1,
        "no GPU": 1,
        "Trainium: not a GPU of the catalogue, or its memory is left open": 1,
        "no on-demand price": 1,
    }
    after = load_offers()
    assert [o for o in after if o.provider != "aws"] == [o for o in before if o.provider != "aws"]
    aws = {offer.instance_type: offer for offer in after if offer.provider == "aws"}
    assert set(aws) == {"g4dn.xlarge", "p4d.24xlarge", "p3.2xlarge"}
    assert aws["g4dn.xlarge"].spot_price_per_h == 0.15
    assert aws["g4dn.xlarge"].snapshot_date == date(2026, 11, 18)
    # the list says A100 and V100; the catalogue knows which part these types have
    assert aws["p4d.24xlarge"].gpu_id == "A100-SXM4-40GB"
    assert aws["p3.2xlarge"].gpu_id == "V100-SXM2-16GB"
    assert aws["p4d.24xlarge"].network_gbps == 400
    assert done.path == user_folder / "offers" / "aws.csv"


def test_a_list_in_our_columns_adds_a_provider() -> None:
    with serving(whole(OWN)) as url:
        _refresh(f"{url}/quotes.csv")
    new = {offer.instance_type: offer for offer in load_offers() if offer.provider == "newcloud"}
    assert (new["big"].gpu_id, new["big"].price_per_h, new["big"].currency) == ("A100-SXM4-80GB", 70.5, Currency.CNY)
    assert new["big"].snapshot_date == date(2026, 11, 20)
    assert (new["part"].vgpu, new["part"].gpu_memory_gb_each, new["part"].region) == (True, 12, None)
    assert new["part"].snapshot_date == TODAY
    assert find_offers(["A100-SXM4-80GB"]).num_searched == 3186 + 2


def test_a_local_file_will_do(tmp_path: Path) -> None:
    path = tmp_path / "quotes.csv"
    path.write_text(OWN.rstrip("\n"))
    _refresh(str(path))
    assert sum(offer.provider == "newcloud" for offer in load_offers()) == 2


def test_a_refresh_again_gives_the_same_list(user_folder: Path) -> None:
    with serving(whole(OWN)) as url:
        _refresh(f"{url}/quotes.csv")
        first = (user_folder / "offers" / "newcloud.csv").read_bytes()
        _refresh(f"{url}/quotes.csv")
    assert (user_folder / "offers" / "newcloud.csv").read_bytes() == first


MALFORMED = """\
provider,instance_type,region,gpu,gpu_count,price_per_h,currency
newcloud,a,r,T4,one,1,USD
newcloud,b,r,T4,1,-3,USD
newcloud,c,r,NoSuchGPU,1,1,USD
newcloud,d,r,T4,1,1,XYZ
newcloud,e,r,T4,1
newcloud,,r,T4,1,1,USD
newcloud,g,r,T4,1,nan,USD
newcloud,ok,r,T4,1,1,USD
"""

FAILURES: list[tuple[str, Answer, type[GpurigError], tuple[str, ...]]] = [  # type: ignore[valid-type]
    ("not found", sends(b"no", status=404, announced=2), DownloadFailed, ("404 Not Found",)),
    ("server error", sends(b"", status=500, announced=0), DownloadFailed, ("500",)),
    ("cut short of the announced length", sends(OWN.encode()[:150], announced=len(OWN)), DownloadFailed, ("cut short",)),
    ("cut in the last line", sends(OWN.encode()[:-5]), DownloadFailed, ("cut short: the last line does not end",)),
    ("a web page", whole("<html>\n<body>Sign in</body>\n</html>\n"), BadFile, ("is not a price list", "first line: <html>")),
    ("empty", whole("\n"), BadFile, ("is not a price list",)),
    ("no rows", whole(OWN.splitlines()[0] + "\n"), BadFile, ("has no GPU offer that can be used",)),
    ("not UTF-8", sends(b"provider,\xff\xfe\n", announced=12), BadFile, ("is not a text in UTF-8",)),
    ("an unknown column", whole("colour," + OWN.replace("\n", "\nred,").removesuffix("red,")), BadFile, ("line 1: unknown column 'colour'",)),
    (
        "malformed rows, all of them named",
        whole(MALFORMED),
        BadFile,
        (
            "7 faults",
            "line 2: gpu_count 'one' is not a number",
            "line 3: price_per_h -3 is outside",
            "line 4: unknown GPU 'NoSuchGPU'",
            "line 5: currency 'XYZ' is not one of",
            "line 6: more or fewer cells than the header",
            "line 7: instance_type is empty",
            "line 8: price_per_h nan is outside",
        ),
    ),
    ("a name that would leave the folder", whole(OWN.replace("newcloud", "../evil")), BadFile, ("is not a provider name",)),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "error", "texts"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
def test_a_failed_refresh_keeps_the_old_list(
    answer: Answer,
    error: type[GpurigError],
    texts: tuple[str, ...],
    user_folder: Path,  # type: ignore[valid-type]
) -> None:
    with serving(whole(OWN)) as url:
        _refresh(f"{url}/quotes.csv")
    stored = user_folder / "offers" / "newcloud.csv"
    old_bytes, old_offers = stored.read_bytes(), load_offers()
    with serving(answer) as url, pytest.raises(error) as caught:
        _refresh(f"{url}/quotes.csv")
    said = "\n".join((caught.value.message, *caught.value.details))
    assert [text for text in texts if text not in said] == []
    assert "kept: the 3188 offers known before" in said
    forget_offers()
    assert load_offers() == old_offers
    assert stored.read_bytes() == old_bytes
    assert [path.name for path in stored.parent.iterdir()] == ["newcloud.csv"]


def test_a_server_that_never_answers_meets_the_time_limit() -> None:
    release = threading.Event()
    with serving(lambda handler: (release.wait(), None)[1]) as url:
        try:
            with pytest.raises(DownloadFailed) as caught:
                _refresh(f"{url}/aws/vms.csv", timeout_s=0.2)
        finally:
            release.set()
    assert "no answer within 0.2 s" in caught.value.details


def test_a_server_that_drips_meets_the_time_limit() -> None:
    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x")
        except OSError:
            handler.close_connection = True

    with serving(drip) as url, pytest.raises(DownloadFailed) as caught:
        fetch(url, timeout_s=0.2, max_bytes=2**40)
    assert "no answer within 0.2 s" in caught.value.details


def test_an_endless_answer_is_cut_off() -> None:
    def flood(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            handler.close_connection = True

    with serving(flood) as url, pytest.raises(DownloadFailed) as caught:
        fetch(url, max_bytes=2**20)
    assert "larger than 1 MiB" in caught.value.details


def test_nobody_listening_is_a_failure_outside() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DownloadFailed) as caught:
        _refresh(f"http://127.0.0.1:{port}/aws/vms.csv")
    assert caught.value.exit_code == 3
    assert "refused" in caught.value.details[0]


def test_a_folder_that_cannot_be_written_keeps_the_old_offers(user_folder: Path) -> None:
    before = load_offers()
    user_folder.mkdir()
    (user_folder / "offers").write_text("a file where the folder should be")
    with serving(whole(OWN)) as url, pytest.raises(DownloadFailed) as caught:
        _refresh(f"{url}/quotes.csv")
    assert caught.value.hint == "set GPURIG_HOME to a folder that you may write to"
    forget_offers()
    assert load_offers() == before


def test_a_rename_that_fails_leaves_no_temporary_file(user_folder: Path) -> None:
    blocked = user_folder / "offers" / "newcloud.csv"
    (blocked / "occupied").mkdir(parents=True)
    with serving(whole(OWN)) as url, pytest.raises(DownloadFailed, match="cannot store"):
        _refresh(f"{url}/quotes.csv")
    assert [path.name for path in blocked.parent.iterdir()] == ["newcloud.csv"]


def test_a_list_that_lost_most_offers_is_taken_for_damaged() -> None:
    expected = pytest.raises(DownloadFailed, match="has 3 offers, the one in use 479")
    with serving(whole(SKYPILOT)) as url, expected as caught:
        refresh(f"{url}/aws/vms.csv", today=TODAY)
    assert caught.value.hint == "add --allow-shrink if it is right"


def test_a_skypilot_list_must_say_whose_prices_it_holds() -> None:
    with serving(whole(SKYPILOT)) as url, pytest.raises(BadFile) as caught:
        _refresh(f"{url}/vms.csv")
    assert caught.value.hint == "add --provider NAME"


def test_a_stored_list_that_was_damaged_is_named_and_can_be_refreshed(user_folder: Path) -> None:
    stored = user_folder / "offers" / "newcloud.csv"
    with serving(whole(OWN)) as url:
        _refresh(f"{url}/quotes.csv")
        stored.write_text(stored.read_text()[:200])
        forget_offers()
        with pytest.raises(BadFile, match=r"newcloud\.csv is damaged"):
            load_offers()
        _refresh(f"{url}/quotes.csv")
    assert sum(offer.provider == "newcloud" for offer in load_offers()) == 2


def test_rows_of_another_provider_are_a_fault_where_one_was_named() -> None:
    with pytest.raises(BadFile) as caught:
        parse_price_list(OWN, origin="list", provider="aws", day=None, gpus=load_gpus(), parts={})
    assert caught.value.details == (
        "line 2: provider 'newcloud' is not 'aws'",
        "line 3: provider 'newcloud' is not 'aws'",
    )


def test_many_faults_are_counted_and_the_first_twenty_shown() -> None:
    rows = "".join(f"newcloud,t{n},r,T4,x,1,USD\n" for n in range(50))
    with pytest.raises(BadFile, match="50 faults") as caught:
        parse_price_list(
            MALFORMED.splitlines()[0] + "\n" + rows, origin="list", provider=None, day=None, gpus=load_gpus(), parts={}
        )
    assert len(caught.value.details) == 21
    assert caught.value.details[-1] == "and 30 more"
