"""Operators of flex attention, which call the functions that a model gives them."""

from __future__ import annotations

from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

__all__ = ["flex_attention", "flex_attention_backward"]
