"""What the tests of the fake engines share: two models, a client, calls on the side, a look at what is left."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests import toolkit
from tests.fake_engine import FakeServer
from tests.fake_vllm import FakeVllm

LONG = "the same system prompt for everybody, " * 8
SHORT = "hello"
OLD = toolkit.make_model(seed=1, kib=8)
NEW = toolkit.step(OLD, 2, 0.2)


def ask(fake: FakeServer, path: str, body: Any = None, **named: Any) -> requests.Response:
    """GET without a body, POST with one ({} for an empty POST), each over a connection of its own."""
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Connection"] = "close"
        method = "GET" if body is None else "POST"
        return session.request(method, fake.url + path, json=body or None, **{"timeout": 60, **named})


def reload(fake: FakeVllm, path: Path, **more: Any) -> requests.Response:
    """Have every rank load that directory."""
    return ask(fake, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}, **more})


@contextmanager
def aside(call: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator["Future[Any]"]:
    """A call that goes on in a thread of its own while the story goes on; it is over at the end of the block."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call, *arguments, **named)


def _sockets() -> int:
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith("socket:")
        except OSError:
            continue  # the descriptor of this very look
    return count


@contextmanager
def nothing_left() -> Iterator[None]:
    """After the block there are no more threads and sockets than before it."""
    threads, sockets = threading.active_count(), _sockets()
    yield
    gc.collect()  # a client's connection lives as long as anybody holds its answer
    assert threading.active_count() <= threads, threading.enumerate()
    assert _sockets() <= sockets
