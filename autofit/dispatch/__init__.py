"""Dispatchers, which run trials on this machine or on a Ray cluster."""

from autofit.dispatch.apart import RayApart
from autofit.dispatch.base import Devices, Dispatcher, Runner
from autofit.dispatch.inline import InlineDispatcher
from autofit.dispatch.ray import RayDispatcher
from autofit.dispatch.requests import Wishes

__all__ = ["Devices", "Dispatcher", "InlineDispatcher", "RayApart", "RayDispatcher", "Runner", "Wishes"]
