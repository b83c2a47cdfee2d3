"""Commands on locks of memory: `lock` and `diff`; `check --lock` is an option of `check`."""
