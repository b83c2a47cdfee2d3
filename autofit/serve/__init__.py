"""Server of Prometheus metrics for all searches and jobs in a storage."""
