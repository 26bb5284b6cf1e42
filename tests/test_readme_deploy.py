"""The text and the manifests of vime_sync/docs/DEPLOY.md are right for this program, and run.

No cluster is needed: manifests are read, and their daemons and the engine's start are run here. (The batch script is
run in `test_readme_deploy_slurm.py`.)
"""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests import toolkit
from tests.daemon_story import eventually
from tests.deploy_story import (
    DEPLOY,
    ROOT,
    Container,
    Place,
    blocks,
    clean_environment,
    containers,
    daemons,
    engines,
    manifests,
    pods,
    program,
    prose,
)
from tests.fake_vllm import FakeVllm
from tests.watch_story import any_watch
from vime_sync.cli.application import application
from vime_sync.daemon.answers import PATHS

OPTIONS_OF_OTHERS = {"--model-path", "--host", "--port", "--cpus-per-task"}  # of SGLang and of srun


def _parsers() -> dict[str, Any]:
    parsers: dict[str, Any] = getattr(typer.main.get_command(application), "commands")  # noqa: B009 - a group's
    return parsers


def _named(item: Container) -> str:
    return f"{item.workload}:{item.given['name']}"


# ---- the text


def test_every_option_setting_and_metric_that_is_named_is_one() -> None:
    options = {option for parser in _parsers().values() for parameter in parser.params for option in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z]\w*(?:-\w+)*", prose()))
    assert named <= options | OPTIONS_OF_OTHERS
    twins = {parameter.envvar for parser in _parsers().values() for parameter in parser.params}
    assert set(re.findall(r"VIME_SYNC_[A-Z_]*[A-Z]", DEPLOY)) <= twins
    metrics = (ROOT / "vime_sync" / "daemon" / "metrics.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in metrics for name in re.findall(r"`(vime_sync_\w+)`", DEPLOY))


def test_what_it_refers_to_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(vime_sync/docs/DEPLOY.md)" in readme
    for target in re.findall(r"\]\(([^)]+)\)", DEPLOY):
        assert (ROOT / "vime_sync" / "docs" / target).exists(), target
    for heading in re.findall(r'README, "([^"]+)"', " ".join(DEPLOY.split())):
        assert f"\n## {heading}\n" in readme


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines()])
def test_a_command_of_ours_parses(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "vime-sync"
    _parsers()[words[1]].make_context(words[1], words[2:])


def test_the_image_runs_the_command_as_the_user_of_the_manifests() -> None:
    (text,) = blocks("dockerfile")
    given = dict(line.split(" ", 1) for line in text.splitlines())
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (command,) = json.loads(given["ENTRYPOINT"])
    assert f'\n{command} = "vime_sync.cli:main"\n' in project
    minor = re.search(r'^requires-python = ">=3\.(\d+)"$', project, re.MULTILINE)
    image = re.fullmatch(r"python:3\.(\d+)-slim", given["FROM"])
    assert minor and image and int(image[1]) >= int(minor[1])
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version
    for item in daemons():
        user = item.given["securityContext"]
        assert given["USER"] == f"{user['runAsUser']}:{user['runAsGroup']}"
        assert item.given["image"] == f"vime-sync:{version[1]}"


# ---- manifests


def test_every_document_stands_by_itself() -> None:
    """Selectors select, mounts have their volumes, volumes their mounts, and what is referred to is there."""
    kinds = [(document["apiVersion"], document["kind"]) for document in manifests()]
    assert kinds == [("v1", "ConfigMap"), ("v1", "Service"), ("apps/v1", "Deployment"), *[("apps/v1", "DaemonSet")] * 2]
    labels = []
    for document in manifests():
        assert document["metadata"]["name"]
        if "template" in document.get("spec", {}):
            labels.append(document["spec"]["template"]["metadata"]["labels"])
            assert document["spec"]["selector"] == {"matchLabels": labels[-1]}
    config_maps = {document["metadata"]["name"] for document in manifests() if document["kind"] == "ConfigMap"}
    for _, pod in pods():
        every = [*pod["containers"], *pod.get("initContainers", [])]
        mounted = {mount["name"] for item in every for mount in item["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} <= config_maps
        assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    for document in manifests():
        if document["kind"] == "Service":
            assert document["spec"]["selector"] in labels
            ports = {port["containerPort"] for item in containers() for port in item.given.get("ports", [])}
            assert {port["targetPort"] for port in document["spec"]["ports"]} <= ports


def test_the_front_lets_nothing_through_but_v1() -> None:
    (config,) = [document["data"]["default.conf"] for document in manifests() if document["kind"] == "ConfigMap"]
    locations = dict(re.findall(r"location (\S+) \{(.*?)\}", config, re.DOTALL))
    assert locations.keys() == {"/v1/", "/"}
    assert "proxy_pass http://127.0.0.1:8000;" in locations["/v1/"]
    assert locations["/"].split() == ["return", "404;"]


@pytest.mark.parametrize("item", daemons(), ids=_named)
def test_the_settings_of_a_daemon_are_those_of_watch(item: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = _parsers()["watch"]
    twins = {parameter.envvar for parameter in parser.params}
    assert item.environment.keys() - {"OPENBLAS_NUM_THREADS"} <= twins
    for name in twins:
        monkeypatch.delenv(str(name), raising=False)
    for name, value in item.environment.items():
        monkeypatch.setenv(name, value)
    assert item.words[0] == "watch"
    parser.make_context("watch", item.words[1:])


@pytest.mark.parametrize("item", daemons(), ids=_named)
def test_a_daemon_has_what_it_needs_and_no_more(item: Container) -> None:
    settings = item.environment
    for name, is_read_only in {"SHARED": True, "BASE": True, "LOCAL": False, "ACK_DIR": False}.items():
        assert item.is_read_only(settings[f"VIME_SYNC_{name}"]) is is_read_only, name
    assert "emptyDir" in item.volume(settings["VIME_SYNC_LOCAL"]) or "hostPath" in item.volume(
        settings["VIME_SYNC_LOCAL"]
    )
    security = item.given["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    # The daemon needs none; what a pre-read hook runs may.
    assert not item.is_read_only("/tmp") and "emptyDir" in item.volume("/tmp")
    # Once for the end of running requests, once for the load.
    assert item.pod["terminationGracePeriodSeconds"] > 2 * float(settings["VIME_SYNC_ENGINE_TIMEOUT"])
    assert int(settings["VIME_SYNC_THREADS"]) == int(item.given["resources"]["limits"]["cpu"])
    assert "livenessProbe" not in item.given


@pytest.mark.parametrize("item", [*daemons(), *engines()], ids=_named)
def test_readiness_is_asked_where_a_daemon_answers(item: Container) -> None:
    if "readinessProbe" not in item.given:
        (beside,) = [other for other in daemons() if other.pod is item.pod]  # it answers for the whole pod
        assert "readinessProbe" in beside.given
        return
    probe = item.given["readinessProbe"]["httpGet"]
    engine = re.fullmatch(r"/healthz/(127\.0\.0\.1:\d+)", probe["path"])
    assert probe["path"] in PATHS or engine
    on_node = item.pod.get("hostNetwork", False)
    (daemon,) = [other for other in daemons() if other.pod.get("hostNetwork", False) is on_node]
    address, _, port = daemon.environment["VIME_SYNC_HTTP"].rpartition(":")
    assert probe["port"] == int(port)
    # A probe comes from the node: to the pod's address unless it says otherwise.
    assert (address, probe.get("host")) == (("127.0.0.1", "127.0.0.1") if on_node else ("0.0.0.0", None))
    if engine:
        assert daemon.environment["VIME_SYNC_ENGINE"] == f"vllm=http://{engine[1]}"


@pytest.mark.parametrize("item", engines(), ids=_named)
def test_an_engine_starts_from_the_base_on_loopback_and_sees_local(item: Container) -> None:
    (daemon,) = [other for other in daemons() if other.pod.get("hostNetwork") == item.pod.get("hostNetwork")]
    text = " ".join(item.words)
    assert f"vllm serve {daemon.environment['VIME_SYNC_BASE']} --host 127.0.0.1 --port 8000" in text
    assert daemon.environment["VIME_SYNC_ENGINE"] == "vllm=http://127.0.0.1:8000"
    assert item.environment == {"VLLM_SERVER_DEV_MODE": "1"}
    for name in ("VIME_SYNC_BASE", "VIME_SYNC_LOCAL"):
        path = daemon.environment[name]
        assert item.is_read_only(path)
        assert item.mount(path)["mountPath"] == daemon.mount(path)["mountPath"]
        assert item.volume(path) == daemon.volume(path)


@pytest.mark.parametrize("item", daemons(), ids=_named)
def test_a_daemon_follows_the_share_and_the_probes_are_answered(item: Container, tmp_path: Path) -> None:
    place = Place(tmp_path)
    with FakeVllm(place.host.base) as engine:
        environment = place.environment(item.environment, engine_port=engine.port)
        with any_watch(place.host, *item.words, environment=environment) as watch:
            watch.wait_for_version(2)
            paths = ("/healthz", f"/healthz/127.0.0.1:{engine.port}")
            eventually(lambda: all(watch.get(path)[0] == 200 for path in paths), "200 for both probes")
            record = toolkit.vime("wait", "--ack-dir", place.acks, "--version", "2", "--hosts", "node-1", "--served")
            assert record.code == 0, record.stderr
            assert watch.end() == 0
        place.host.expect_local(2)
        assert engine.weight_version == "2"


def test_an_engine_that_failed_for_good_is_started_again(tmp_path: Path) -> None:
    """The daemon's command makes the engine's liveness probe fail, and the engine's start makes it good again."""
    place = Place(tmp_path)
    (engine,) = [item for item in engines() if "livenessProbe" in item.given]
    (daemon,) = [other for other in daemons() if other.pod is engine.pod]
    assert engine.volume("/control/") == daemon.volume("/control/")
    assert not engine.is_read_only("/control/") and not daemon.is_read_only("/control/")
    programs = tmp_path / "programs"
    program(programs, "vllm", '#!/bin/sh\necho "$@"\n')

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        here = [place.here(word, engine_port=1) for word in words]
        return subprocess.run(here, env=clean_environment(programs), check=False, capture_output=True, text=True)

    def is_alive() -> bool:
        return run(engine.given["livenessProbe"]["exec"]["command"]).returncode == 0

    assert is_alive()
    assert run(shlex.split(daemon.environment["VIME_SYNC_ON_ENGINE_FAILURE"])).returncode == 0
    assert not is_alive()
    started = run(engine.words)
    assert started.returncode == 0 and started.stdout.startswith(f"serve {place.host.base} "), started
    assert is_alive()
