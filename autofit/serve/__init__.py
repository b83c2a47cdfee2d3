"""Server of Prometheus metrics for everything in a storage."""
