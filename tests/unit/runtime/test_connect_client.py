"""tidegate.runtime.connect_client: what can go wrong without a server."""

import threading

from tidegate.runtime import connect_client


def test_a_channel_that_never_closes_keeps_nobody(monkeypatch):
    """As gRPC's does, sometimes, behind a call that Ctrl-C broke off; it cannot be had on purpose."""
    monkeypatch.setattr(connect_client, "CLOSING_SECONDS", 0.05)
    never, begun = threading.Event(), threading.Event()

    class Hanging:
        def close(self):
            begun.set()
            never.wait()

    connect_client._Leaving(Hanging()).close()
    assert begun.is_set()
    never.set()
