"""Which workload a trial runs: references to one, and what is known of workloads without importing them."""
