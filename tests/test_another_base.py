"""Version 0 is the base that is given: bytes of another one are never called so, whatever LOCAL came from."""

import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import models
from tests.kill_points import tracing


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path / "one", model=models(256))
    host.publish()
    host.publish()
    host.pulled()
    return host


@pytest.mark.parametrize("with_share", [True, False])
def test_going_back_to_version_0_of_another_base_brings_that_one(host: Host, tmp_path: Path, with_share: bool) -> None:
    other = Host.create(tmp_path / "other", model=toolkit.make_model(seed=99))
    shares = ("--shared", host.shared) if with_share else ()
    for _ in range(2):  # the first success means the same as the second
        result = toolkit.vime("pull", "--local", host.local, "--base", other.base, "--version", "0", *shares)
        assert (result.code, result.document["version"]) == (0, 0), result.stderr
        other.expect_local(0, host.local)


def test_going_back_to_version_0_of_the_same_base_reads_none_of_it(host: Host) -> None:
    with tracing() as trace:
        assert host.pulled(version=0)["result"] == "rolled_back"
    host.expect_local(0)
    assert trace.bytes_from(host.base, ".safetensors") < 64 * 1024


def test_a_base_that_was_only_copied_is_the_same(host: Host, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(host.base, copy)
    result = toolkit.vime("pull", "--local", host.local, "--base", copy, "--version", "0")
    assert (result.code, result.document["result"]) == (0, "rolled_back"), result.stderr
    host.expect_local(0)


def test_a_cache_of_another_run_begins_anew_from_the_base_that_is_given(tmp_path: Path) -> None:
    """What is published as version 1 is for hosts that begin with `--base`."""
    first = Host.create(tmp_path / "first", model=toolkit.make_model(seed=1))
    second = Host.create(tmp_path / "second", model=toolkit.make_model(seed=2))
    cache = tmp_path / "cache"
    for host, steps in ((first, 2), (second, 1)):
        host.shared.mkdir(exist_ok=True)
        for version in range(1, steps + 1):
            host.models[version] = toolkit.step(host.models[version - 1], version)
            saved = tmp_path / f"{host.root.name}-{version}"
            toolkit.write_checkpoint(saved, host.models[version])
            places = ("--shared", host.shared, "--from", saved, "--base", host.base, "--cache", cache)
            published = toolkit.vime("publish", *places)
            assert (published.code, published.document["version"]) == (0, version), published.stderr
        host.pulled()
        host.expect_local(steps)
