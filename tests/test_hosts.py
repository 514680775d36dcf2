"""Processes as hosts: each in a network namespace of its own, joined by a cable that can be cut."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from tests.runs import lines, start
from tests.test_resilience import shared, usual_signals  # noqa: F401

HOSTS = {"metamask-a": "10.77.83.1", "metamask-b": "10.77.83.2"}
ENDLESS = ["--config.train.steps=100000", "--config.checkpoint.every_steps=20"]
PORT = 4711


def ip(*words, host=None):
    inside = () if host is None else ("netns", "exec", host, "ip")
    return subprocess.run(["ip", *inside, *words], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def network():
    """Two hosts and a cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2: hosts are network namespaces")
    settings = [pathlib.Path("/etc/netns") / host for host in HOSTS]
    try:
        for host in HOSTS:
            ip("netns", "add", host)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    try:
        ip(
            "link",
            "add",
            "cable",
            "netns",
            "metamask-a",
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            "metamask-b",
        )
        for (host, address), folder in zip(HOSTS.items(), settings, strict=True):
            ip("link", "set", "lo", "up", host=host)
            ip("address", "add", f"{address}/24", "dev", "cable", host=host)
            ip("link", "set", "cable", "up", host=host)
            folder.mkdir(parents=True)  # what `ip netns exec` puts in the place of files in /etc
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        yield
    finally:
        for host, folder in zip(HOSTS, settings, strict=True):
            ip("netns", "delete", host)
            shutil.rmtree(folder, ignore_errors=True)


def start_hosts(shared, workdir, *flags):  # noqa: F811
    coordinator = f"--coordinator={HOSTS['metamask-a']}:{PORT}"
    return [
        start(
            *(shared, workdir, coordinator, "--processes=2", f"--process={i}", *flags),
            devices=2,
            host=("ip", "netns", "exec", host),
        )
        for i, host in enumerate(HOSTS)
    ]


def wait_for_lines(workdir, processes, count):
    goal = lines(workdir) + count
    while lines(workdir) < goal:
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def saved(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


@pytest.mark.slow
def test_hosts_stop_together_and_one_that_is_cut_off_ends_both(shared, network, tmp_path):  # noqa: F811
    processes = start_hosts(shared, tmp_path, *ENDLESS)
    wait_for_lines(tmp_path, processes, 3)
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [143, 143], outputs
    steps = {int(re.search(r"after step (\d+); the state is saved", text)[1]) for text in outputs}
    assert steps == {saved(tmp_path)[-1]}

    processes = start_hosts(shared, tmp_path, *ENDLESS)
    wait_for_lines(tmp_path, processes, 3)
    ip("link", "set", "cable", "down", host="metamask-b")
    try:
        outputs = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        ip("link", "set", "cable", "up", host="metamask-b")
    assert [process.returncode for process in processes] == [1, 1], outputs
    for text in outputs:
        assert "another process of this run has ended or cannot be reached" in text
        assert "Traceback" not in text
        assert "@     0x" not in text  # a stack of C++

    last = saved(tmp_path)[-1]
    assert last >= max(steps)
    short = [f"--config.train.steps={last + 2}", "--accept-changes"]
    processes = start_hosts(shared, tmp_path, *short)
    outputs = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert f"resuming from the checkpoint after step {last}" in outputs[0]
