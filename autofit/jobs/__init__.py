"""Searches as jobs on a Ray cluster: their queue, their code packages, and their drivers."""
