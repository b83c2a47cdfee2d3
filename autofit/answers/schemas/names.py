"""Schemas of documents that no class writes: lists that the command line makes."""

from __future__ import annotations

MODELS_SCHEMA = "autofit.models/1"
GPUS_SCHEMA = "autofit.gpus/1"
CONV_ALGOS_SCHEMA = "autofit.conv-algos/1"
DOCTOR_SCHEMA = "autofit.doctor/1"
OBSERVATIONS_SCHEMA = "autofit.observations/1"
JOBS_SCHEMA = "autofit.jobs/1"
FLEET_SCHEMA = "autofit.fleet/1"
SUBMIT_SCHEMA = "autofit.submit/1"
