"""Page on this machine's loopback interface, on which a configuration is changed by hand.

    move.py        position of the controls, read from a request ─▶ settings, a command line, a settings file
    live.py        one workload and knob setting: traced once, then answered at any batch size on any card
    answers.py     a move ─▶ progress, estimate, cards and curve; keeps configurations, and tabs apart
    threads.py     runs what takes long beside the event loop
    server.py      aiohttp's server: its paths, its guards, its end
    files/         the page: template, script and styles, beside those of the report

Each answer is that of `autofit estimate`, `check` or `cards` for the same configuration.
"""
