"""Stands in for the JVM in tests of what watches over it: `fake_server.py ok|mute|slow|failing|stubborn`.

ok: says that it is ready, and says the HTTP/2 hello to whoever connects.
mute: says that it is ready, and never anything to anybody.
slow: like ok, once there is a file `go` where it runs.
failing: ends before it is ready.
stubborn: like ok, but does not end when told to.
"""

import contextlib
import signal
import socket
import sys
import time
from pathlib import Path

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

how = sys.argv[1]
if how == "failing":
    sys.exit("java.lang.IllegalArgumentException: no such thing")
if how == "slow":
    print("loading classes", file=sys.stderr, flush=True)
    while not Path("go").exists():
        time.sleep(0.02)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
print(f"ConnectServer: listens at 127.0.0.1:{port}", file=sys.stderr, flush=True)
while True:
    connection, _ = listening.accept()
    with connection, contextlib.suppress(OSError):
        if how == "mute":
            connection.recv(1 << 20)
            signal.pause()
        connection.sendall(SETTINGS)
        connection.recv(1 << 20)
