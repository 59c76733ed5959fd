"""A federation's project: what lies where, and who may read it."""

from __future__ import annotations

import shutil
import stat
import subprocess

import pytest
import yaml
from cryptography import x509

from dpfedadamw.extensions.deployment import templates
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts
from dpfedadamw.extensions.deployment.project import Addresses
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.dpfedadamw.extensions.deployment.loops import made
from tests.runs import small_spec

# One linear layer of 64 inputs and ten classes.
PARAMETERS = 64 * 10 + 10


def test_each_client_has_keys_of_its_own_and_only_its_own_records(unused):
    sites = [unused.site(one) for one in range(3)]
    facts = Facts.read(sites[0].facts)
    assert len(set(facts.keys)) == 3
    assert len({site.key.read_bytes() for site in sites}) == 3
    assert len({unused.supernode(one).key.read_bytes() for one in range(3)}) == 3
    assert len({site.salt.read_bytes() for site in sites}) == 1
    assert stat.S_IMODE(unused.path.stat().st_mode) == 0o700
    for site in sites:
        for folder in (".", "evidence", "door", "supernode"):
            assert stat.S_IMODE((site.path / folder).stat().st_mode) == 0o700
        for name in ("key", "salt", "share.npz", "supernode/key"):
            assert stat.S_IMODE((site.path / name).stat().st_mode) == 0o600


def test_instructions_can_be_read_by_all_and_the_script_that_prepares_can_be_run(unused):
    systemd = list((unused.path / "systemd").iterdir())
    assert len(systemd) == 4
    for path in (*systemd, *(unused.path / name for name in ("README.md", "Dockerfile"))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE((unused.path / "prepare").stat().st_mode) == 0o755


def test_a_supernode_has_its_key_and_its_settings_and_nothing_of_the_client(unused):
    for client in range(3):
        node = unused.supernode(client)
        names = {path.name for path in node.path.iterdir()}
        assert names == {"key", "key.pub", "ca.crt", "supernode.json"}
        address, socket, most = node.settings()
        assert address == "127.0.0.1:9092"
        assert socket.resolve() == unused.site(client).socket
        # A broadcast has a few vectors as long as the model, and 16 MiB for all else.
        assert most == 64 * PARAMETERS + 16 * 1024 * 1024


@pytest.mark.parametrize("host", ["127.0.0.1", "link.example.org", "203.0.113.7", "2001:db8::7"])
def test_a_superlinks_certificate_has_every_name_by_which_a_supernode_reaches_it(host, tmp_path):
    project = made(SPEC, tmp_path / "project", Addresses(host=host, port=9443))
    found = x509.load_pem_x509_certificate((project.server / "superlink.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one.value) for one in names} == {host, "127.0.0.1", "localhost", "superlink"}
    services = yaml.safe_load((project.path / "compose.yaml").read_text())["services"]
    command = services["supernode-00"]["command"]
    address, *_ = project.supernode(0).settings()
    # An address of IPv6 in brackets (RFC 3986), where a colon comes before the port too.
    assert address == ("[2001:db8::7]:9443" if ":" in host else f"{host}:9443")
    told = (project.path / "README.md").read_text()
    assert address in told
    # What it listens on by default is IPv4.
    assert ("superlink server --host :: --port 9443\n" in told) is (":" in host)
    # Among the containers of one machine it has the name of its service.
    reached = "superlink:9443" if host == "127.0.0.1" else None
    where = command[command.index("--superlink") + 1] if "--superlink" in command else None
    assert where == reached
    assert services["superlink"]["ports"] == ["9443:9443"]


def test_certificates_last_ten_years_because_no_authority_is_left_that_could_renew_them(unused):
    for path in (unused.server / "superlink.crt", unused.supernode(0).authority):
        found = x509.load_pem_x509_certificate(path.read_bytes())
        assert (found.not_valid_after_utc - found.not_valid_before_utc).days == 3652


def test_the_server_has_no_clients_records_and_not_the_salt(unused):
    names = {path.name for path in unused.server.iterdir()}
    assert names == {
        "spec.yaml", "federation.json", "test.npz", "superlink.crt", "superlink.key", "nodes",
    }  # fmt: skip
    keys = [(unused.server / "nodes" / f"0{one}.pub").read_bytes() for one in range(3)]
    assert keys == [unused.supernode(one).public.read_bytes() for one in range(3)]


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
    # A refusal is not tried again: each attempt costs privacy.
    assert "restart" not in services["superlink"]


def test_a_supernodes_container_sees_its_own_part_and_the_door_and_can_change_neither(unused):
    services = yaml.safe_load((unused.path / "compose.yaml").read_text())["services"]
    assert services["supernode-01"]["volumes"] == [
        "./clients/01/supernode:/client/supernode:ro",
        "./clients/01/door:/client/door:ro",
    ]
    users = {name: one["user"].split(":")[0] for name, one in services.items()}
    assert users["superlink"] != users["client-00"] != users["supernode-00"] != users["superlink"]
    assert "0" not in users.values()
    for one in services.values():
        assert one["cap_drop"] == ["ALL"]
        assert one["read_only"] is True
    assert "\nUSER " in (unused.path / "Dockerfile").read_text()


def unit(project, name):
    """The settings of one unit, by name; of those that stand there twice, all values."""
    found = {}
    for line in (project.path / "systemd" / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_units_have_users_of_their_own_and_see_nothing_but_their_own_folder(unused):
    superlink, client, node = (
        unit(unused, name)
        for name in (
            "dpfedadamw-superlink.service",
            "dpfedadamw-client@.service",
            "dpfedadamw-supernode@.service",
        )
    )
    users = {one["User"][0] for one in (superlink, client, node)}
    made = (unused.path / "systemd" / "dpfedadamw.sysusers").read_text()
    assert len(users) == 3
    assert all(f"u {user} " in made for user in users)
    site = f"{unused.path}/clients/%i"
    assert client["BindPaths"] == [f'"{site}"']
    assert "BindPaths" not in node
    assert node["BindReadOnlyPaths"] == [f'"{site}/supernode" "{site}/door"']
    assert superlink["BindPaths"] == [f'"{unused.path}/server"']
    assert client["PrivateNetwork"] == ["yes"]
    for one in (superlink, client, node):
        homes, memory = "/home:ro /root:ro /run/user:ro", "/dev/shm:mode=1777"
        assert one["TemporaryFileSystem"] == [f'"{unused.path}:ro"', homes, memory]
        assert one["ReadOnlyPaths"] == ["/run"]
        assert one["ProtectProc"] == ["invisible"]
        assert one["ProtectHome"] == ["tmpfs"]
        # A refusal is not tried again: each attempt costs privacy.
        assert "2" in one["RestartPreventExitStatus"][0].split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_no_complaint_about_the_units_whatever_the_folder_is_called(tmp_path):
    folder = "/srv/a 100% $federation"
    units = {
        "dpfedadamw-superlink.service": templates.superlink_unit(folder, "link.example.org", 9092),
        "dpfedadamw-client@.service": templates.client_unit(folder),
        "dpfedadamw-supernode@.service": templates.supernode_unit(folder),
    }
    for name, text in units.items():
        assert "/opt/dpfedadamw/bin/dpfedadamw " in text
        (tmp_path / name).write_text(text.replace("/opt/dpfedadamw/bin/dpfedadamw", "/bin/true"))
    paths = [tmp_path / name for name in units]
    ended = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True)
    # It looks at other units of the machine too.
    assert [line for line in ended.stderr.splitlines() if "dpfedadamw" in line] == []


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd is not installed")
def test_systemd_makes_every_user_that_the_units_name(tmp_path):
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", "-"]
    ended = subprocess.run(command, input=templates.SYSUSERS, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    made = (tmp_path / "etc" / "passwd").read_text() + (tmp_path / "etc" / "group").read_text()
    for name in ("superlink", "client", "supernode", "door"):
        assert f"dpfedadamw-{name}:" in made


def test_what_cannot_be_deployed_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DeploymentError, match=r"privacy\.unit: none"):
        made(small_spec("fedavg"), tmp_path / "project")
    assert not (tmp_path / "project").exists()
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "file").touch()
    with pytest.raises(DeploymentError, match="not empty"):
        made(small_spec(), tmp_path / "held")


def test_the_project_states_what_a_client_agrees_to_and_the_most_that_a_server_can_ask(unused):
    text = (unused.path / "README.md").read_text()
    assert "after the spec's 2 rounds. At most" in text
    assert "all 4 participations that a client pays for" in text


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("127.0.0.1", ["--superlink", "superlink:9443"]),
        ("localhost", ["--superlink", "superlink:9443"]),
        ("::1", ["--superlink", "superlink:9443"]),
        ("link.example.org", []),
    ],
)
def test_each_container_runs_the_command_of_its_part(host, where):
    services = yaml.safe_load(templates.compose(host, 9443, 12))["services"]
    assert len(services) == 25
    command = ["dpfedadamw", "flower"]
    assert services["superlink"]["command"] == [*command, "superlink", "/server", "--port", "9443"]
    assert services["client-11"]["command"] == [*command, "client", "/client"]
    assert services["client-11"]["volumes"] == ["./clients/11:/client"]
    node = [*command, "supernode", "/client/supernode", *where]
    assert services["supernode-11"]["command"] == node
    assert services["client-11"]["restart"] == services["supernode-11"]["restart"] == "on-failure"


def test_a_folder_whatever_it_is_called_is_one_word_for_systemd_and_for_a_shell():
    folder = '/srv/a "b" 100% $c \\ it\'s'
    lines = templates.superlink_unit(folder, "127.0.0.1", 9443).splitlines()
    # Of systemd.service(5) and systemd.syntax(7): %% is %, $$ is $ in commands alone.
    mount = '/srv/a \\"b\\" 100%% $c \\\\ it\'s'
    program = "/opt/dpfedadamw/bin/dpfedadamw flower superlink"
    argument = mount.replace("$", "$$")
    assert f'ExecStart={program} "{argument}/server" --port 9443' in lines
    assert f'BindPaths="{mount}/server"' in lines
    listening = templates.superlink_unit(folder, "::1", 9443)
    assert f'"{argument}/server" --host :: --port 9443\n' in listening
    client, node = templates.client_unit(folder), templates.supernode_unit(folder)
    assert f'flower client "{argument}/clients/%i"\n' in client
    assert f'flower supernode "{argument}/clients/%i/supernode"\n' in node
    assert f'BindReadOnlyPaths="{mount}/clients/%i/supernode" "{mount}/clients/%i/door"' in node
    (change,) = (line for line in templates.prepare(folder).splitlines() if line[:3] == "cd ")
    said = subprocess.run(
        ["sh", "-c", f"printf '%s|' {change}"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"cd|{folder}|"


@pytest.mark.parametrize(
    "host",
    ["link", "a", "link.example.org", "x_1-y", "203.0.113.7", "::1", "xn--mnchen-3ya.example"],
)
def test_a_superlink_is_reached_by_a_name_or_an_address(host):
    assert Addresses(host=host, port=1).host == host


@pytest.mark.parametrize(
    "host",
    ["", "münchen.example", "a b", "link:9092", "https://link", "link\n", "-x", "x.", "a" * 254,
     'a"b', "$x", "*.example.org", "[::1]"],
)  # fmt: skip
def test_a_host_that_no_certificate_can_name_is_refused_before_anything_is_written(host, tmp_path):
    with pytest.raises(DeploymentError, match="is neither an address nor a name"):
        made(SPEC, tmp_path / "project", Addresses(host=host))
    assert not (tmp_path / "project").exists()
