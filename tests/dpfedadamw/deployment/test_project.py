"""A federation's project: what lies where, and who may read it."""

from __future__ import annotations

import stat

import pytest
import yaml

from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.facts import Facts
from tests.dpfedadamw.deployment.loops import made
from tests.runs import small_spec


def test_each_client_has_keys_of_its_own_and_only_its_own_records(unused):
    sites = [unused.site(one) for one in range(3)]
    facts = Facts.read(sites[0].facts)
    assert len(set(facts.keys)) == 3
    assert len({site.key.read_bytes() for site in sites}) == 3
    assert len({(site.path / "node").read_bytes() for site in sites}) == 3
    assert len({site.salt.read_bytes() for site in sites}) == 1
    for site in sites:
        assert stat.S_IMODE(site.path.stat().st_mode) == 0o700
        for name in ("key", "salt", "share.npz", "node", "node.tls.key"):
            assert stat.S_IMODE((site.path / name).stat().st_mode) == 0o600


def test_the_app_that_every_machine_gets_holds_code_alone(unused):
    names = {path.name for path in unused.app.rglob("*") if path.is_file()}
    assert names == {"pyproject.toml", "__init__.py", "client.py", "server.py"}


def test_the_server_has_no_clients_records_and_not_the_salt(unused):
    names = {path.name for path in unused.server.iterdir()}
    assert names == {
        "spec.yaml", "federation.json", "test.npz", "ca.crt", "superlink.crt", "superlink.key",
        "nodes", "config.toml",
    }  # fmt: skip


def test_instructions_name_every_client_and_never_switch_tls_off(unused):
    files = [unused.path / "README.md", unused.path / "compose.yaml"]
    files += sorted((unused.path / "systemd").iterdir())
    for path in files:
        assert "--insecure" not in path.read_text()
    services = yaml.safe_load((unused.path / "compose.yaml").read_text())["services"]
    assert set(services) == {
        "superlink", *(f"{kind}-0{one}" for kind in ("client", "supernode") for one in range(3)),
    }  # fmt: skip
    assert services["client-00"]["network_mode"] == "none"
    unit = (unused.path / "systemd" / "dpfedadamw-supernode@.service").read_text()
    assert f"'site=\"{unused.path}/clients/%i\"'" in unit
    (hidden,) = (line for line in unit.splitlines() if line.startswith("InaccessiblePaths="))
    for name in ("share.npz", "key", "salt"):
        assert f"clients/%i/{name}" in hidden
        assert f"/dev/null:/client/{name}:ro" in services["supernode-00"]["volumes"]
    for name in ("evidence", "ledger.jsonl"):
        assert f"clients/%i/{name}" in hidden


def test_what_cannot_be_deployed_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DeploymentError, match=r"privacy\.unit: none"):
        made(small_spec("fedavg"), tmp_path / "project")
    assert not (tmp_path / "project").exists()
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "file").touch()
    with pytest.raises(DeploymentError, match="not empty"):
        made(small_spec(), tmp_path / "held")
