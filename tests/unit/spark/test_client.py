"""How a server is reached: what goes over TLS, and what need not."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.spark.server import client

TOKEN = "token=0123456789abcdef"


@pytest.mark.parametrize(
    ("url", "channel"),
    [
        (f"sc://localhost:15002/;{TOKEN}", "plain"),
        (f"sc://127.0.0.1:15002/;{TOKEN}", "plain"),
        (f"sc://127.9.9.9:15002/;{TOKEN}", "plain"),
        (f"sc://[::1]:15002/;{TOKEN}", "plain"),
        (f"sc://127.0.0.1:15002/;use_ssl=true;{TOKEN}", "TLS"),
        (f"sc://spark.example.com:15002/;{TOKEN}", "TLS"),
        (f"sc://10.0.0.9:15002/;{TOKEN}", "TLS"),
        (f"sc://127.0.0.1.example.com:15002/;{TOKEN}", "TLS"),
        ("sc://spark.example.com:15002", "plain"),
    ],
)
def test_a_token_goes_over_tls_except_to_this_machine(url: str, channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder: Any = client.remote(url)
    monkeypatch.setattr(builder, "_insecure_channel", lambda *_: "plain")
    monkeypatch.setattr(builder, "_secure_channel", lambda *_: "TLS")
    assert builder.channel == channel
