"""The real servers of all stories: started once each, since a start takes half a minute."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_vllm.server import Server
from tests.real_vllm.stream import TinyHost
from tests.real_vllm.truth import Truth

API_KEY = "the-key-of-the-stories"
_FAULTS = "tests.real_vllm.faults."


def pytest_configure(config: pytest.Config) -> None:
    """A run that is told to end still ends its servers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every engine is started on: the base of every story."""
    return TinyHost.begin(tmp_path_factory.mktemp("engines")).base


@pytest.fixture
def host(tmp_path: Path) -> TinyHost:
    """A host of its own for each story, with the same base."""
    return TinyHost.begin(tmp_path)


@pytest.fixture(scope="session")
def reference(model: Path) -> Iterator[Server]:
    """Launched with the first story, and waited for when an answer of it is needed."""
    server = Server(model)
    try:
        server.launch()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def truth(reference: Server, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The right answers of any weights."""
    return Truth(reference, tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="session")
def engine_process(model: Path, reference: Server) -> Iterator[Server]:
    """The engine under test, which need not be up."""
    server = Server(model, extension=_FAULTS + "FaultyWorker", api_key=API_KEY)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def engine(engine_process: Server) -> Server:
    """The engine under test, up; what it has loaded is what the story before left."""
    engine_process.ensure_up()
    return engine_process


@pytest.fixture(scope="session")
def ranks(model: Path) -> Iterator[Server]:
    """An engine of two tensor-parallel ranks that has our worker extension."""
    with Server(model, tensor_parallel=2, extension=_FAULTS + "FaultyPullWeightsExtension") as server:
        yield server
