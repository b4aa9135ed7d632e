"""A command's own connection to Ray: started and stopped by it, quiet, or refused in one line."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from ray._private import worker
from ray.exceptions import AuthenticationError

from gem_ood.errors import InputError
from gem_ood.ray import session as module


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "gem_ood", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture
def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_command_starts_its_own_workers_and_prints_its_result_alone(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "rows.npz", features=rows, labels=np.arange(60) % 2)
    done = command("fit", "rows.npz", "--out", "d.safetensors", "--engine", "ray", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_rows"] == 60
    assert (tmp_path / "d.safetensors").is_file()


def late(*outcomes):
    """Stand-in of `ray.init` that raises what is not None, call by call."""
    calls = []

    def init(**options):
        calls.append(options)
        if outcomes[len(calls) - 1] is not None:
            raise outcomes[len(calls) - 1]

    return init, calls


NODE_LATE = Exception("The current node timed out during startup. This could happen because ...")


def test_workers_whose_processes_were_late_are_started_again(monkeypatch):
    init, calls = late(NODE_LATE, NODE_LATE, None)
    monkeypatch.setattr(module.ray, "init", init)
    module.start(address="local")
    assert calls == [{"address": "local"}] * 3


def test_processes_of_a_node_that_was_late_are_ended():
    done = subprocess.run([sys.executable, "-c", LATE_ONCE], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    begun, running = map(int, done.stdout.split())
    assert begun >= 2  # more where the machine is so busy that another one is late in earnest
    assert running == 1


#: Starts Ray with a first node whose start is taken for late, and counts what runs then.
LATE_ONCE = """
import ray
from ray._private import node, services
from gem_ood.ray.session import start

begun, get_node = [], services.get_node

class Late(node.Node):
    def __init__(self, *arguments, **options):
        begun.append(self)
        super().__init__(*arguments, **options)

def late_once(*arguments):
    if len(begun) == 1:
        raise Exception("The current node timed out during startup.")
    return get_node(*arguments)

node.Node, services.get_node = Late, late_once
start(address="local", num_cpus=1, include_dashboard=False, logging_level="error", log_to_driver=False)
alive = [one for one in begun if any(process.poll() is None for _, process in one.live_processes())]
print(len(begun), len(alive))
ray.shutdown()
"""


def test_workers_that_never_start_are_one_clear_error(monkeypatch):
    init, calls = late(*[NODE_LATE] * module.STARTS)
    monkeypatch.setattr(module.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(module.ray, "init", init)
    with pytest.raises(InputError, match=r"no Ray cluster answers at this machine \(its processes had not started"):
        module.session().__enter__()
    assert len(calls) == module.STARTS


def test_any_other_failure_of_ray_is_not_tried_again(monkeypatch):
    init, calls = late(MemoryError("no room"))
    monkeypatch.setattr(module.ray, "init", init)
    with pytest.raises(MemoryError, match="no room"):
        module.start()
    assert len(calls) == 1


def test_where_no_cluster_is_one_line_says_so(tmp_path, closed_port):
    np.savez(tmp_path / "rows.npz", features=np.eye(3))
    address = f"127.0.0.1:{closed_port}"
    done = command("fit", "rows.npz", "--out", "d.safetensors", "--engine", "ray", "--address", address, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"gem-ood: error: no Ray cluster answers at {address}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "d.safetensors").exists()


def test_what_listens_but_is_no_head_is_told_from_one(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 3.0)
    message = "something listens there, but it is not the head of a cluster"
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError, match=message):
        module._reach(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.usefixtures("ray_session")
def test_a_head_is_reached():
    import ray

    module._reach(ray.get_runtime_context().gcs_address)


def test_an_address_that_a_head_left_behind_is_refused(monkeypatch, closed_port):
    monkeypatch.setattr(module.services, "canonicalize_bootstrap_address_or_die", lambda _: f"127.0.0.1:{closed_port}")
    with pytest.raises(ConnectionRefusedError):
        module._reach("auto")


@pytest.mark.parametrize("address", ["odd", "ray://head:10001", "head:port", ":"])
def test_what_is_no_address_is_refused_before_anything_is_tried(address):
    with pytest.raises(ValueError, match="HOST:PORT or auto"):
        module._reach(address)


def test_a_cluster_that_asks_for_a_token_is_told_from_none():
    error = RuntimeError("failed to connect")
    error.__cause__ = AuthenticationError("token")
    assert module._lacks_token(error)
    assert not module._lacks_token(RuntimeError("failed to connect"))


def test_what_ray_says_of_its_workers_stays_off_standard_output(capsys):
    said = {
        "is_err": False,
        "pid": "raylet",
        "lines": ["warning"],
        "ip": "",
        "job": None,
        "task_name": "",
        "actor_name": "",
    }
    with module._silence():
        worker.print_to_stdstream(said, ignore_prefix=False)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("ray_session")
def test_workers_of_another_version_are_refused(monkeypatch):
    monkeypatch.setattr(module, "__version__", "0.0.0")
    with pytest.raises(InputError, match=r"workers have gem-ood .* but this machine has 0\.0\.0"):
        module._refuse_other_version()


@pytest.mark.usefixtures("ray_session")
def test_a_connection_that_is_there_is_used_and_left_open():
    import ray

    with module.session("nowhere:1"):
        assert ray.is_initialized()
    assert ray.is_initialized()
