"""Admission reviews: the question of a Kubernetes API server, and the answer to it.

The documents are those of `admission.k8s.io/v1` (`AdmissionReview` in the API reference of Kubernetes). Any
pod of a cluster may send one, so nothing of a document is trusted to have its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
_CREATE = "CREATE"
_FORBIDDEN = 403
# Kubernetes may cut longer warnings, and drops what is above a total of a few kilobytes.
_MOST_WARNING, _MOST_WARNINGS = 256, 8
_MOST_UID = 253


class MalformedReviewError(Exception):
    """A document is no admission review; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Question whether an object may be created.

    Attributes:
        uid: id of the question, which the answer repeats.
        kind: kind of the object, such as `RayJob`.
        is_creation: whether the object is to be created; others are changed, deleted or connected to.
        manifest: the object, as its manifest has it.
    """

    uid: str
    kind: str
    is_creation: bool
    manifest: Mapping[str, Any] = field(default_factory=dict)


def review_of(body: bytes) -> Review:
    """Review from the body of a request.

    Raises:
        MalformedReviewError: the body is no JSON, or no admission review of version v1.
    """
    try:
        document = json.loads(body)
    except (
        ValueError,
        RecursionError,
    ) as error:  # also of numbers with thousands of digits, and of deep nesting
        raise MalformedReviewError("the body is not JSON") from error
    review = as_mapping(document)
    if review.get("apiVersion") != API_VERSION or review.get("kind") != KIND:
        raise MalformedReviewError(f"the body is no {KIND} of {API_VERSION}")
    request = as_mapping(review.get("request"))
    uid = request.get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= _MOST_UID:
        raise MalformedReviewError(f"the {KIND} has no request with a uid")
    kind = as_mapping(request.get("kind")).get("kind")
    return Review(
        uid=uid,
        kind=kind if isinstance(kind, str) else "",
        is_creation=request.get("operation") == _CREATE,
        manifest=as_mapping(request.get("object")),
    )


def answer_to(
    review: Review, *, is_allowed: bool, message: str = "", warnings: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Answer to a review, as a document.

    Args:
        is_allowed: whether the object may be created.
        message: reason, where it may not.
        warnings: sentences that whoever creates the object is shown; each is cut at 256 characters.
    """
    response: dict[str, Any] = {"uid": review.uid, "allowed": is_allowed}
    if not is_allowed:
        response["status"] = {"code": _FORBIDDEN, "message": message}
    if warnings:
        response["warnings"] = [_cut(warning) for warning in warnings[:_MOST_WARNINGS]]
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _cut(warning: str) -> str:
    return warning if len(warning) <= _MOST_WARNING else f"{warning[: _MOST_WARNING - 3]}..."


def as_mapping(value: object) -> Mapping[str, Any]:
    """Value if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_items(value: object) -> Iterator[Any]:
    """Yields the items of an array of JSON; nothing for another value."""
    if isinstance(value, list):
        yield from value
