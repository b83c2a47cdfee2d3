"""The metrics of everything in a storage, for Prometheus."""
