"""A mounted ConfigMap that changes: the kubelet points the link `..data` to a new directory."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from autoscaler.config.model import Config, DaemonSpec, TlsSpec
from autoscaler.daemon import service
from tests.daemon.test_process import PATIENCE, Place, decided, eventually, get, place

__all__ = ["place"]


def mount(place: Place, version: str) -> None:
    """Move the configuration into a volume and point the link `..data` to it, as the kubelet does."""
    volume = place.directory / "volume"
    (volume / version).mkdir(parents=True)
    text = place.config.read_text()
    (volume / version / "config.yaml").write_text(text.replace("directory: var", f"directory: {place.directory}/var"))
    (volume / "..data_tmp").symlink_to(version)
    (volume / "..data_tmp").rename(volume / "..data")
    if not (volume / "config.yaml").is_symlink():
        (volume / "config.yaml").symlink_to("..data/config.yaml")
    place.config.unlink()
    place.config.symlink_to("volume/config.yaml")


def configure(place: Place, version: str, *names: str, rest: str = "") -> None:
    place.config.unlink(missing_ok=True)
    place.configure(*names, rest=rest)
    mount(place, version)


def test_a_configmap_that_changes_while_the_daemon_starts_is_loaded(place: Place) -> None:
    configure(place, "..1", "a")
    # Loading the configuration imports the plug-in's module, after it has read the file: swap the file in the import.
    module = place.directory / "site" / "plugins_of_files.py"
    swap = (
        f"if not os.path.exists('{place.directory}/swapped'):\n"
        f"    open('{place.directory}/swapped', 'w').close()\n"
        f"    os.replace('{place.directory}/later', '{place.directory}/volume/..data')\n"
    )
    module.write_text(module.read_text() + "\n\nimport os\n" + swap)
    text = place.config.read_text()
    configure(place, "..2", "a", "b")
    (place.directory / "volume" / "..1" / "config.yaml").write_text(text)
    (place.directory / "later").symlink_to("..2")
    (place.directory / "first").symlink_to("..1")
    (place.directory / "first").rename(place.directory / "volume" / "..data")
    daemon = place.start()
    assert place.wait_for_log("configuration reloaded")["added"] == ["b"]
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def test_a_changed_configmap_is_reloaded_and_an_invalid_one_is_refused_without_a_restart(place: Place) -> None:
    configure(place, "..1", "a")
    daemon = place.start()
    url = place.url()
    decided(place, "a", 1)
    configure(place, "..2", "a", "b", rest="  d: {interval: soon, targt: {}}\n")
    place.wait_for_log("configuration not reloaded")
    assert any("targt" in problem for problem in get(f"{url}/readyz")[1]["reload"])
    assert [row["name"] for row in get(f"{url}/api/v1/clusters")[1]["clusters"]] == ["a"]
    configure(place, "..3", "a", "b")
    assert place.wait_for_log("configuration reloaded")["added"] == ["b"]
    decided(place, "b", 1)
    assert get(f"{url}/readyz")[1]["reload"] == "ok"
    # A file edited in place may be half written, so the daemon loads it only after a SIGHUP.
    text = place.config.read_text()
    place.config.write_text(text.replace("decisions: 100000", "decisions: 90000"))
    daemon.send_signal(signal.SIGHUP)
    place.wait_for_log("configuration reloaded", 2)
    assert daemon.poll() is None
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    eventually(lambda: place.lines()[-1]["message"] == "stopped", place.log.read_text)


async def test_a_renewed_certificate_of_a_mount_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONFIG_POLL", 0.01)
    link = tmp_path / "tls.crt"
    link.symlink_to("first")
    tls = TlsSpec(certificate=link, key=tmp_path / "tls.key")
    path = tmp_path / "config.yaml"
    config = Config(path=path, daemon=DaemonSpec(directory=tmp_path, tls=tls), sources={}, clusters={})
    reloads: list[signal.Signals] = []
    signals = service._Signals()
    monkeypatch.setattr(signals, "reload", reloads.append)
    following = asyncio.create_task(service._follow(service._followed(config, str(path)), signals))
    await asyncio.sleep(0.05)
    assert reloads == []
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(link)
    async with asyncio.timeout(PATIENCE):
        while not reloads:  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    following.cancel()
    assert reloads == [signal.SIGHUP]
