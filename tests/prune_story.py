"""A share to prune: eight versions of which 4 and 7 are full, and what must hold of it afterwards."""

from pathlib import Path

from tests import toolkit
from tests.ack_hosts import put
from tests.host import Host
from tests.toolkit import Result, vime
from vime_sync.acks import make_ack
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state


def create(root: Path) -> Host:
    host = Host.create(root, model=toolkit.make_model(kib=8))
    for version in range(1, 9):
        if version in (4, 7):
            host.publish_full()
        else:
            host.publish(encoding="overwrite" if version == 6 else "xor")
    return host


def prune(host: Host, keep: int, *options: str | Path) -> Result:
    return vime("prune", "--shared", host.shared, "--keep", str(keep), *options)


def pruned(host: Host, keep: int, *options: str | Path) -> list[int]:
    """A prune that must succeed: what it removed, which is what is gone."""
    before = published(host)
    result = prune(host, keep, *options)
    assert result.code == 0, result.stderr
    removed: list[int] = result.document["removed"]
    assert published(host) == result.document["kept"] == [version for version in before if version not in removed]
    return removed


def published(host: Host) -> list[int]:
    return sorted(int(path.name.removeprefix("weight_v")) for path in host.shared.glob("weight_v" + "[0-9]" * 6))


def acked(host: Host, directory: Path, local: Path) -> None:
    """The record that the daemon of a LOCAL writes."""
    state = read_state(LocalPaths(local)).state
    assert state is not None
    put(directory, make_ack(f"host-{local.name}", local, state, "ab"))


def pull_fresh(host: Host, name: str, version: int | None = None) -> None:
    local = host.root / name
    result = toolkit.pull(host.shared, local, base=host.base, version=version)
    assert result.code == 0, result.stderr
    host.expect_local(result.document["version"], local)
    assert version in (None, result.document["version"])
