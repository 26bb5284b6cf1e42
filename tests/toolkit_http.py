"""Clients and fixtures for the daemon's HTTP side: real sockets, polite and otherwise."""

import http.client
import json
import socket
import threading
from typing import Any

from vime_sync.daemon.board import EngineView, Snapshot
from vime_sync.daemon.http import HttpServer

SAFETY_S = 30.0
READY = EngineView("http://127.0.0.1:8000", "vllm", "127.0.0.1:8000", "at_version", 7, None, True)
FAILED = EngineView("http://gpu:8001", "sglang", "gpu:8001", "failed", 6, "the engine said 500", False)
SNAPSHOT = Snapshot({"schema": "vime-sync/status/1", "local_version": 7}, True, "", (READY, FAILED))


def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SAFETY_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def ask_json(server: HttpServer, path: str) -> tuple[int, Any]:
    status, body, headers = ask(server, path)
    assert headers["Content-Type"] == "application/json"
    return status, json.loads(body)


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SAFETY_S)


def everything_from(connection: socket.socket) -> bytes:
    """Until the server closes."""
    received = b""
    while more := connection.recv(65536):
        received += more
    return received


def request_threads() -> list[threading.Thread]:
    """Of the server: the one that accepts, and one for each connection."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("vime-sync-http")]


def wait_for_threads(count: int) -> None:
    """Connections are taken in order, but by threads of their own."""
    pause = threading.Event()
    for _ in range(int(SAFETY_S / 0.01)):
        if len(request_threads()) == count:
            return
        pause.wait(0.01)
    raise AssertionError(f"{len(request_threads())} threads, expected {count}")
