"""A client's process that notes each time it draws noise, and waits before it goes on.

Run as ``python -m tests.dpfedadamw.extensions.deployment.hooked SITE TRUTH honest|halved``.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from dpfedadamw.extensions.deployment.listening import serve
from dpfedadamw.extensions.deployment.site import Site
from dpfedadamw.federation.stations import Station

_WAIT = 1.5


def main(site: str, truth: str, mode: str) -> None:
    """Serve one site; one byte of TRUTH for each participation whose noise is drawn."""
    real = Station.answer

    def answer(self, asked, message, memory, randomness):  # type: ignore[no-untyped-def]  # a test
        file = os.open(truth, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, b".")
        os.fsync(file)
        os.close(file)
        if mode == "halved":
            asked = replace(asked, noise_multiplier=asked.noise_multiplier / 2)
        found = real(self, asked, message, memory, randomness)
        time.sleep(_WAIT)
        return found

    Station.answer = answer  # type: ignore[method-assign]  # what the test is about
    # More kills than a client pays for by itself.
    serve(Site(Path(site)), most_charges=1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
