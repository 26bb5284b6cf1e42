"""FIELD_GUIDE H11: LOCAL, SHARED and the base in one another, also through links: refused, nothing written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error


def _local_is_base(host: Host) -> tuple[Path, Path, Path]:
    return host.shared, host.base, host.base


def _local_in_shared(host: Host) -> tuple[Path, Path, Path]:
    return host.shared, host.shared / "local", host.base


def _local_is_shared(host: Host) -> tuple[Path, Path, Path]:
    return host.shared, host.shared, host.base


def _local_in_base(host: Host) -> tuple[Path, Path, Path]:
    return host.shared, host.base / "local", host.base


def _shared_in_local(host: Host) -> tuple[Path, Path, Path]:
    return _into_local(host, host.shared), host.local, host.base


def _base_in_local(host: Host) -> tuple[Path, Path, Path]:
    return host.shared, host.local, _into_local(host, host.base)


def _into_local(host: Host, directory: Path) -> Path:
    host.local.mkdir()
    return directory.rename(host.local / directory.name)


NESTED: list[Callable[[Host], tuple[Path, Path, Path]]] = [
    _local_is_base,
    _local_in_shared,
    _local_is_shared,
    _local_in_base,
    _shared_in_local,
    _base_in_local,
]


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("linked", [None, "shared", "local", "base"])
@pytest.mark.parametrize("nest", NESTED)
def test_h11_directories_in_one_another_are_refused(
    nest: Callable[[Host], tuple[Path, Path, Path]], linked: str | None, adopt: bool, tmp_path: Path
) -> None:
    host = Host.create(tmp_path / "world")
    host.publish()
    paths = dict(zip(("shared", "local", "base"), nest(host), strict=True))
    if linked is not None:
        # The last part may not exist yet (LOCAL), so the link is one level up.
        (tmp_path / "link").symlink_to(paths[linked].parent)
        paths[linked] = tmp_path / "link" / paths[linked].name
    before = everything(tmp_path)

    options = ("--adopt",) if adopt else ()
    result = toolkit.pull(paths["shared"], paths["local"], *options, base=paths["base"])

    expect_error(result, 2, "usage")
    assert everything(tmp_path) == before
