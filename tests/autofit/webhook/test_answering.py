"""The webhook over HTTPS: right, malformed, huge and hostile reviews, and certificates that are renewed."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from autofit.errors import UsageError
from autofit.serve.server import serve_http
from autofit.webhook.answering import MOST_BODY_BYTES, PATH, WebhookMetrics, answering
from autofit.webhook.certificates import Certificates
from autofit.webhook.judging import Judgement, judge
from autofit.webhook.kept_locks import KeptLocks
from autofit.webhook.review import MalformedReviewError, review_of
from tests.autofit.webhook.certificate import write_certificate
from tests.autofit.webhook.reviews import lock_in, peak, pod_on, review, template


@dataclass
class Served:
    """A running webhook, with what it was made of."""

    port: int
    folder: Path
    certificates: Certificates
    registry: CollectorRegistry
    said: list[str]

    def connection(self) -> http.client.HTTPSConnection:
        """Connection that trusts the certificate which is in the folder now."""
        trusted = ssl.create_default_context(cafile=str(self.folder / "tls.crt"))
        return http.client.HTTPSConnection("localhost", self.port, context=trusted, timeout=30)

    def post(self, body: bytes, path: str = PATH) -> tuple[int, Any]:
        """Status, and the document or text of the answer."""
        connection = self.connection()
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()

    def count(self, judgement: str, admitted: str) -> float:
        labels = {"judgement": judgement, "admitted": admitted}
        return self.registry.get_sample_value("autofit_webhook_reviews_total", labels) or 0.0


@pytest.fixture
def locks(tmp_path: Path) -> KeptLocks:
    path = lock_in(tmp_path / "a.toml", "gpt", peak("t4", 15, 15.5), peak("l4", 15, 15.5))
    made = KeptLocks([path], log=print)
    made.refresh()
    return made


@pytest.fixture
def served(tmp_path: Path, locks: KeptLocks) -> Iterator[Served]:
    """A webhook on loopback that refuses what does not fit."""
    said: list[str] = []
    certificates = Certificates(*write_certificate(tmp_path), log=said.append)
    registry = CollectorRegistry()
    answer = answering(locks, {Judgement.DOES_NOT_FIT}, WebhookMetrics(registry, locks, certificates))
    server = serve_http(answer, 0, "localhost", of="the webhook", tls=certificates.context)
    yield Served(server.port, tmp_path, certificates, registry, said)
    server.close()


def test_what_does_not_fit_is_refused_with_the_sentence_and_what_to_ask_for(served: Served) -> None:
    status, answer = served.post(pod_on("Tesla-T4"))
    assert status == 200
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("705ab4f5-6393-11e8-b7cc-42010a800002", False)
    assert response["status"]["code"] == 403
    assert response["status"]["message"].startswith("gpt does not fit on t4: it likely needs")
    assert "nvidia.com/gpu.memory above" in response["status"]["message"]
    assert served.count("does-not-fit", "false") == 1


def test_what_fits_is_admitted_without_a_word(served: Served) -> None:
    assert served.post(pod_on("NVIDIA-L4"))[1]["response"] == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": True,
    }


def test_what_is_not_known_is_admitted_with_a_warning_of_one_line(served: Served) -> None:
    response = served.post(pod_on("NVIDIA-L4", "gpt" * 200))[1]["response"]
    assert response["allowed"]
    [warning] = response["warnings"]
    assert warning.startswith("autofit: no lock has a configuration")
    assert len(warning) <= 256
    assert warning.isprintable()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"apiVersion": ' + b"9" * 5000 + b"}", 400),
        (json.dumps({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}).encode(), 400),
        (json.dumps({**review("Pod", {}), "request": {"uid": 7}}).encode(), 400),
        (b" " * (MOST_BODY_BYTES + 1), 413),
    ],
    ids=["empty", "bytes", "deep", "long number", "another version", "no uid", "huge"],
)
def test_what_is_no_review_gets_a_sentence(served: Served, body: bytes, status: int) -> None:
    answered, text = served.post(body)
    assert (answered, text.count("\n")) == (status, 1)
    assert served.count("malformed", "false") == 1
    assert served.post(pod_on("NVIDIA-L4"))[0] == 200


def test_a_body_in_parts_that_never_ends_is_cut_off_at_the_limit(served: Served) -> None:
    connection = served.connection()
    connection.putrequest("POST", PATH)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    part = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for _ in range(MOST_BODY_BYTES // 0x10000 + 1):
        connection.send(part)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (413, "close")
    connection.close()
    assert served.post(pod_on("NVIDIA-L4"))[0] == 200


PRODUCT = "nvidia.com/gpu.product"


@pytest.mark.parametrize(
    "made",
    [
        template("gpt", terms=[{"key": "a", "operator": "In", "values": []}] * 1000),
        template(
            "gpt", terms=[{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["x"] * 50_000}]
        ),
        template("gpt", selector={PRODUCT: "x" * 1_000_000}),
        template("gpt" * 80_000, selector={"nvidia.com/gpu.product": "Tesla-T4"}),
        template("gpt", limits={f"nvidia.com/{number}": 1 for number in range(50_000)}),
    ],
    ids=["terms", "values", "label", "name", "resources"],
)
def test_a_pod_that_is_made_to_take_long_is_unknown_at_once(locks: KeptLocks, made: dict[str, Any]) -> None:
    asked = review_of(json.dumps(review("Pod", made)).encode())
    steps = 0

    def count(*_arguments: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        judged = judge(asked, locks)
    finally:
        sys.setprofile(None)
    assert judged.judgement is Judgement.UNKNOWN
    assert len(judged.reason) < 500
    assert steps < 600_000  # calls of functions, where one of each value with each other would be billions


def test_other_paths_and_methods_are_told_what_there_is(served: Served) -> None:
    assert served.post(b"{}", "/")[0] == 404
    connection = served.connection()
    connection.request("GET", PATH)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    connection.close()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KINDS = ["Pod", "Job", "CronJob", "JobSet", "PyTorchJob", "RayJob", "Workload"]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


TERMS: list[dict[str, str | list[str]]] = [
    {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "Tesla-T4-SHARED"]},
    {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]},
]
POD = template("gpt", selector={"nvidia.com/gpu.product": "Tesla-T4"}, terms=TERMS)
WHOLE = review("PyTorchJob", {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": POD}}}})


@given(place=st.sampled_from(list(_places(WHOLE))), value=JSON_VALUES, kind=st.sampled_from(KINDS))
def test_any_value_at_any_place_of_a_review_is_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], value: Any, kind: str
) -> None:
    """Replaces one part of a review by something else; nothing but a refusal is raised."""
    changed = json.loads(json.dumps(WHOLE))
    changed["request"]["kind"]["kind"] = kind if place else changed["request"]["kind"]["kind"]
    if place:
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
    else:
        changed = value
    empty = KeptLocks([], log=print)
    try:
        asked = review_of(json.dumps(changed).encode())
    except MalformedReviewError:
        return
    assert judge(asked, empty).judgement in (Judgement.NOT_ASKED, Judgement.UNKNOWN)


def test_a_renewed_certificate_is_used_while_reviews_are_answered(served: Served) -> None:
    kept = served.connection()
    kept.request("POST", PATH, pod_on("NVIDIA-L4"))
    assert kept.getresponse().read()
    failures: list[Exception] = []
    trusted = ssl.create_default_context(cafile=str(served.folder / "tls.crt"))
    ended = threading.Event()

    def ask_again_and_again() -> None:
        """Asks over the connection that was open before the certificate was renewed."""
        try:
            while not ended.is_set():
                kept.request("POST", PATH, pod_on("NVIDIA-L4"))
                answer = kept.getresponse()
                assert (answer.status, bool(answer.read())) == (200, True)
        except (OSError, AssertionError, http.client.HTTPException) as error:
            failures.append(error)

    asking = threading.Thread(target=ask_again_and_again)
    asking.start()
    write_certificate(served.folder)
    served.certificates.refresh()
    assert served.post(pod_on("NVIDIA-L4"))[0] == 200  # by the new certificate, which alone is trusted there
    with (
        socket.create_connection(("localhost", served.port), timeout=30) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        trusted.wrap_socket(plain, server_hostname="localhost")
    ended.set()
    asking.join()
    kept.close()
    assert failures == []
    assert served.said == [f"a new certificate is in use: {served.folder / 'tls.crt'}"]


def test_a_half_written_pair_keeps_the_former_certificate(served: Served, tmp_path: Path) -> None:
    """As when the certificate is there already and its key is not."""
    former = ssl.create_default_context(cafile=str(served.folder / "tls.crt"))
    (tmp_path / "new").mkdir()
    certificate, key = write_certificate(tmp_path / "new")
    (served.folder / "tls.crt").write_bytes(certificate.read_bytes())
    for _ in range(3):
        served.certificates.refresh()
    assert served.registry.get_sample_value("autofit_webhook_certificate_stale") == 1
    assert len(served.said) == 1
    with socket.create_connection(("localhost", served.port), timeout=30) as plain:
        former.wrap_socket(plain, server_hostname="localhost").close()
    (served.folder / "tls.key").write_bytes(key.read_bytes())
    served.certificates.refresh()
    assert served.registry.get_sample_value("autofit_webhook_certificate_stale") == 0
    assert served.post(pod_on("NVIDIA-L4"))[0] == 200


def test_files_that_are_no_pair_are_a_usage_error(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    key.write_text("no key")
    with pytest.raises(UsageError, match=r"tls\.crt and .*tls\.key are no certificate with its key"):
        Certificates(certificate, key, log=print)
    with pytest.raises(UsageError, match="No such file"):
        Certificates(tmp_path / "none.crt", key, log=print)
