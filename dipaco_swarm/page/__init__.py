"""The page of a run: what a browser, a scraper or a program is shown of it, and what is written down for its curves.

    watch       a thread that looks once a second, for all viewers together
    picture     what it has seen, as plain values; what has changed since
    pace        counted tokens, goodput, when the stage ends
    credit      who has offered how much time, and whose tokens counted
    history     samples of a run's whole life in SQLite, the older the coarser
    board       the newest picture as bytes, and whoever waits for the next one
    app         the ASGI application: pages, JSON, server-sent events, metrics
    metrics     the same values for Prometheus
    serving     an address, a socket and a thread of its own for the server

Names and numbers come from strangers: they are data, and stay text. No route changes anything, so there is nobody to
log in. Only the last three need the extra `[web]`: the history is written without it.
"""
