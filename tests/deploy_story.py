"""What vime_sync/docs/DEPLOY.md shows, as values: manifests, containers, scripts; and one host to run them on."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests import toolkit
from tests.host import Host

ROOT = Path(__file__).parents[1]
DEPLOY = (ROOT / "vime_sync" / "docs" / "DEPLOY.md").read_text(encoding="utf-8")
DAEMON_IMAGE = re.compile(r"vime-sync:")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in _FENCE.findall(DEPLOY) if name == language]


def prose() -> str:
    return _FENCE.sub("", DEPLOY)


@cache
def manifests() -> list[dict[str, Any]]:
    """Every document of every YAML block."""
    return [document for block in blocks("yaml") for document in yaml.safe_load_all(block)]


@dataclass(frozen=True)
class Container:
    """One container, and the specification of the pod that it stands in."""

    workload: str
    pod: dict[str, Any]
    given: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """What refers to a field of the pod is given some name."""
        return {item["name"]: item.get("value", "node-1") for item in self.given.get("env", [])}

    @property
    def words(self) -> list[str]:
        return [*self.given.get("command", []), *self.given.get("args", [])]

    @property
    def mounts(self) -> dict[str, dict[str, Any]]:
        """Path -> mount."""
        return {mount["mountPath"]: mount for mount in self.given.get("volumeMounts", [])}

    def volume(self, path: str) -> dict[str, Any]:
        """What is mounted at this path or above it, without its name."""
        mount = self.mount(path)
        (volume,) = [volume for volume in self.pod["volumes"] if volume["name"] == mount["name"]]
        return {key: value for key, value in volume.items() if key != "name"}

    def mount(self, path: str) -> dict[str, Any]:
        above = [place for place in self.mounts if path == place or path.startswith(f"{place}/")]
        return self.mounts[max(above, key=len)]

    def is_read_only(self, path: str) -> bool:
        return bool(self.mount(path).get("readOnly", False))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for document in manifests():
        if "template" in document.get("spec", {}):
            yield f"{document['kind']}/{document['metadata']['name']}", document["spec"]["template"]["spec"]


def containers() -> list[Container]:
    return [Container(name, pod, given) for name, pod in pods() for given in pod["containers"]]


def daemons() -> list[Container]:
    return [item for item in containers() if DAEMON_IMAGE.match(item.given["image"])]


def engines() -> list[Container]:
    return [item for item in containers() if item.given["name"] == "engine"]


class Place:
    """The document's directories and ports, on one host of a test: a base, two versions, and an engine's port."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host.create(root, model=toolkit.make_model(seed=3, kib=16))
        self.host.publish()
        self.host.publish()
        self.acks, self.control = root / "acks", root / "control"
        self.acks.mkdir()
        self.control.mkdir()

    def here(self, text: str, *, engine_port: int) -> str:
        """With the names of this host; the daemon's own port is any that is free."""
        for told, path in {
            "/mnt/share": self.host.shared,
            "/mnt/acks": self.acks,
            "/nvme/ckpt": self.host.local,
            "/models/qwen3-tiny": self.host.base,
            "/control/": f"{self.control}/",
        }.items():
            text = text.replace(told, str(path))
        text = re.sub(r"(127\.0\.0\.1|0\.0\.0\.0):9178", "127.0.0.1:0", text)
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{engine_port}").replace(
            "--port 8000", f"--port {engine_port}"
        )

    def environment(self, given: Mapping[str, str], *, engine_port: int) -> dict[str, str]:
        return {name: self.here(value, engine_port=engine_port) for name, value in given.items()}


def program(directory: Path, name: str, script: str) -> None:
    """An executable of the test's own."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)


def python_program(directory: Path, name: str, arguments: str) -> None:
    """One that runs Python on this checkout."""
    program(directory, name, f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" {arguments} "$@"\n')


def clean_environment(programs: Path, **more: str) -> dict[str, str]:
    """This process's, with those programs first and no settings of vime-sync."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    return {**environment, "OPENBLAS_NUM_THREADS": "1", "PATH": f"{programs}:{environment['PATH']}", **more}
