"""Webhook that answers a cluster's admission reviews from locks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from autofit.serve.server import Handler
from autofit.webhook.certificates import Certificates
from autofit.webhook.judging import Judged, Judgement, judge
from autofit.webhook.kept_locks import KeptLocks
from autofit.webhook.review import MalformedReviewError, Review, answer_to, review_of

if TYPE_CHECKING:
    from aiohttp import web

PATH = "/validate"
HEALTH_PATH = "/healthz"
# The API server refuses objects above 3 MiB, and a review may hold a former object beside the new one.
MOST_BODY_BYTES = 8 * 1024**2
_BODY_SECONDS = 10.0
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.5)
_MALFORMED = "malformed"


class WebhookMetrics:
    """Series of a webhook, in a registry of Prometheus's client."""

    def __init__(self, registry: CollectorRegistry, locks: KeptLocks, certificates: Certificates) -> None:
        self.reviews = Counter(
            "autofit_webhook_reviews",
            "Answered admission reviews, by judgement, and by whether the object was admitted.",
            ["judgement", "admitted"],
            registry=registry,
        )
        self.duration = Histogram(
            "autofit_webhook_review_duration_seconds",
            "Time from the whole request to its answer.",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        configurations = Gauge(
            "autofit_webhook_configurations", "Configurations in the webhook's locks.", registry=registry
        )
        configurations.set_function(lambda: locks.num_configurations)
        unreadable = Gauge(
            "autofit_webhook_unreadable_locks", "Locks that cannot be read now.", registry=registry
        )
        unreadable.set_function(lambda: len(locks.failures))
        stale = Gauge(
            "autofit_webhook_certificate_stale",
            "1 while the certificate's files have changed and cannot be used.",
            registry=registry,
        )
        stale.set_function(lambda: int(certificates.num_failures > 0))


def answering(locks: KeptLocks, denied: Collection[Judgement], metrics: WebhookMetrics) -> Handler:
    """Handler of the webhook's HTTP requests: reviews at `/validate`, health checks at `/healthz`.

    Args:
        denied: judgements for which an object is refused; with others it is admitted, with a warning.
    """
    from aiohttp import web

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == HEALTH_PATH:
            return web.Response(text="ok\n")
        if request.path != PATH:
            return web.Response(status=404, text=f"not found; reviews are sent to {PATH}\n")
        if request.method != "POST":
            return web.Response(status=405, text="reviews are sent with POST\n", headers={"Allow": "POST"})
        body = await _body_of(request)
        began = time.perf_counter()
        try:
            review = review_of(body) if isinstance(body, bytes) else None
        except MalformedReviewError as error:
            body, review = _Refused(400, str(error)), None
        if review is None:
            metrics.reviews.labels(_MALFORMED, "false").inc()
            assert isinstance(body, _Refused)
            refusal = web.Response(status=body.status, text=f"{body.reason}\n")
            refusal.force_close()  # what is left of the body is not read
            return refusal
        judged = judge(review, locks)
        is_allowed = judged.judgement not in denied
        metrics.reviews.labels(judged.judgement.value, str(is_allowed).lower()).inc()
        document = json.dumps(_document(review, judged, is_allowed=is_allowed)).encode()
        metrics.duration.observe(time.perf_counter() - began)
        return web.Response(body=document, content_type="application/json")

    return answer


@dataclass(frozen=True, slots=True)
class _Refused:
    """Status of HTTP with which a request is refused, and the reason."""

    status: int
    reason: str


async def _body_of(request: web.BaseRequest) -> bytes | _Refused:
    """Body of a request, or why it is refused."""
    too_large = _Refused(413, f"the body has more than {MOST_BODY_BYTES} bytes")
    if (request.content_length or 0) > MOST_BODY_BYTES:
        return too_large
    body = bytearray()

    async def read() -> bytes | _Refused:
        async for part in request.content.iter_any():
            body.extend(part)
            if len(body) > MOST_BODY_BYTES:
                return too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), _BODY_SECONDS)
    except asyncio.TimeoutError:
        return _Refused(408, f"the body did not come within {_BODY_SECONDS:g} s")


def _document(review: Review, judged: Judged, *, is_allowed: bool) -> dict[str, object]:
    sentences = tuple(f"autofit: {text}" for text in (judged.reason, judged.advice) if text)
    if is_allowed:
        return answer_to(review, is_allowed=True, warnings=sentences)
    return answer_to(
        review, is_allowed=False, message=". ".join(filter(None, (judged.reason, judged.advice)))
    )
