"""NVFlare's server and sites as processes of this machine, provisioned as for a real project."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.dpfedadamw.extensions.gate.processes import Processes, free_port

APP = Path(__file__).parent / "app"
USER = "admin@nvidia.com"
PROJECT = """
api_version: 3
name: gated
description: gated
participants:
  - {{name: server, type: server, org: nvidia, default_host: localhost, fed_learn_port: {port}}}
  - {{name: {user}, type: admin, org: nvidia, role: project_admin}}
{sites}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""

ADMIN = """
import json, os, sys, traceback
from nvflare.fuel.flare_api.flare_api import new_secure_session

user, kit, method, words, part = json.loads(sys.argv[1])
code = 1
try:
    session = new_secure_session(user, kit, timeout=10.0)
    found = getattr(session, method)(*words)
    found = getattr(found, part) if part else found
    found = " ".join(map(str, found)) if isinstance(found, list) else found
    print("returned:", json.dumps(found) if isinstance(found, dict) else found, flush=True)
    code = 0
except BaseException:
    traceback.print_exc()
# A session that failed leaves threads.
os._exit(code)
"""


class Machines(Processes):
    """One server and its sites."""

    def __init__(self, place, sites):
        super().__init__(place)
        self.port = free_port()
        self.sites = [f"site-{number + 1}" for number in range(sites)]
        listed = "\n".join(f"  - {{name: {one}, type: client, org: nvidia}}" for one in self.sites)
        project = place / "project.yml"
        project.write_text(PROJECT.format(port=self.port, user=USER, sites=listed))
        self.call("-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(place / "made"))
        self.kits = place / "made" / "gated" / "prod_00"
        # Else another server of this machine would take this one's jobs.
        server = self.kits / "server" / "local" / "resources.json.default"
        server.write_text(server.read_text().replace("/tmp/nvflare", str(place / "stored")))

    def launch(self, name):
        """Start the server, or a site, as its startup kit does."""
        side = "server" if name == "server" else "client"
        more = [] if side == "server" else [f"uid={name}"]
        self.start(
            name, sys.executable, "-u", "-m", f"nvflare.private.fed.app.{side}.{side}_train",
            "-m", str(self.kits / name), "-s", f"fed_{side}.json", "--set", "secure_train=true",
            *more, "org=nvidia", "config_folder=config",
        )  # fmt: skip

    def up(self):
        """Start all, and wait until all sites have joined."""
        for name in ("server", *self.sites):
            self.launch(name)
        self.wait(self.joined, "server")

    def joined(self):
        told = self.admin("get_system_info", part="client_info", code=None)
        return told.count("last_connect_time") == len(self.sites)

    def admin(self, method, *words, part="", code=0):
        """What a method of an admin's session returns, as text; its error where code is None.

        In a process of its own: NVFlare's sessions of two servers in one process hang.
        """
        told = json.dumps([USER, str(self.kits / USER), method, words, part])
        said = self.call("-c", ADMIN, told, code=code)
        return said.rpartition("returned: ")[2].strip()

    def submit(self, name, steps, client=None, **meta):
        """Submit the test's job with a plan; its own number is returned."""
        job = self.place / name
        shutil.copytree(APP, job / "app")
        told = {"name": name, "resource_spec": {}, "min_clients": len(self.sites),
                "deploy_map": {"app": ["@ALL"]}, **meta}  # fmt: skip
        (job / "meta.json").write_text(json.dumps(told))
        server = job / "app" / "config" / "config_fed_server.json"
        found = json.loads(server.read_text())
        found["workflows"][0]["args"] = {
            "plan": ",".join(steps), "out": str(self.place / f"{name}.json"),
            "server": f"localhost:{self.port}",
        }  # fmt: skip
        server.write_text(json.dumps(found))
        if client is not None:
            (job / "app" / "config" / "config_fed_client.json").write_text(json.dumps(client))
        return self.admin("submit_job", str(job))

    def found(self, name, seconds=900.0):
        """What the job's server wrote, once its plan is done."""
        done = self.place / f"{name}.done"
        self.wait(done.exists, "server", seconds)
        return json.loads((self.place / f"{name}.json").read_text())


@contextmanager
def machines(place, sites=2):
    one = Machines(place, sites)
    try:
        yield one
    finally:
        one.end()
