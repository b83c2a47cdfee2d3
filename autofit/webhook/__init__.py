"""Admission of pods to Kubernetes by the memory that their training needs, from locks of memory.

    API server ─▶ server ─▶ review ─▶ pods: which GPU each asks for ─┐
       (TLS: certificates)                locks: peaks by name ──────┴─▶ judging ─▶ review ─▶ API server

Nothing is traced here: an answer comes from a lock, so that it takes milliseconds and no PyTorch.
"""
