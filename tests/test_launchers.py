"""Processes that a launcher has started find each other: JAX's own detection, with what it would find on a pod.

There is no pod here. What a launcher leaves to be found is: variables, and on a TPU VM a server of metadata.
"""

import http.server
import threading

import pytest

from metamask_jax.core.storage import read_json_lines
from tests.runs import ended, free_port, start, write_config
from tests.test_resilience import OVERRIDES

SHORT = {"train.steps": "2"}
# Where JAX finds no chips it decides, when it is imported, that no metadata are to be asked for.
ON_A_TPU_VM = """
import os, sys
import jax
os.environ.pop("TPU_SKIP_MDS_QUERY", None)
from metamask_jax.cli.pretrain import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("shared"), OVERRIDES | SHORT)


@pytest.fixture
def metadata():
    """Starts a server of a TPU VM's metadata on loopback; gives the function that does so."""
    servers = []

    def serve(attributes):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                found = attributes.get(self.path.rpartition("/")[2])
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write((found or "").encode())

            def log_message(self, *arguments):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def on_tpu_vms(metadata):
    """A pod of TPU VMs: no variables, all is in the metadata."""
    hosts = {"worker-network-endpoints": "unknown:8470:127.0.0.1,unknown:8470:127.0.0.1", "tpu-env": ""}
    return [{"GCE_METADATA_IP": metadata(hosts | {"agent-worker-number": str(index)})} for index in range(2)]


def on_gke(metadata):
    """Two pods of a Job on a TPU node pool."""
    server = metadata({"tpu-env": ""})
    hosts = {"TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1", "GCE_METADATA_IP": server}
    return [hosts | {"TPU_WORKER_ID": str(index)} for index in range(2)]


def under_srun(metadata):
    """Two tasks of one node."""
    step = {"SLURM_JOB_ID": str(free_port()), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    return [step | {"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)} for index in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("launched", [on_tpu_vms, on_gke, under_srun])
def test_processes_find_each_other_without_flags(shared, metadata, tmp_path, launched):
    common = {"JAX_COORDINATOR_PORT": str(free_port())}
    program = ("-c", ON_A_TPU_VM)
    if launched is not under_srun:
        common["JAX_FORCE_TPU_INIT"] = "1"
    outputs = ended(
        start(shared, tmp_path, "--distributed=auto", devices=2, environment=common | own, program=program)
        for own in launched(metadata)
    )
    assert "on 4 cpu device(s)" in outputs[0]
    assert "step 2/2" in outputs[0]
    assert "step 2/2" not in outputs[1]
    assert [line["step"] for line in read_json_lines(tmp_path / "metrics.jsonl")] == [1, 2]
    for index in range(2):
        text = (tmp_path / "logs" / f"process_{index:04d}.log").read_text()
        assert f"process {index} of 2 on " in text
        assert "step 2/2" in text
