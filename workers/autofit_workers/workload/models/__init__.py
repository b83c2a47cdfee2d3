"""Built-in workloads, a file each; `autofit_workers.spec.workloads.builtins` lists them."""
