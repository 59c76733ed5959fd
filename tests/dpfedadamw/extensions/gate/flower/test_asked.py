"""What a shard's cell is asked, put together of Flower's answers; stand-ins have their place."""

from __future__ import annotations

from types import SimpleNamespace

from dpfedadamw.extensions.gate.exchange import Question
from dpfedadamw.extensions.gate.flower.link import Asked
from dpfedadamw.extensions.gate.settings import Form


def test_a_cell_is_told_the_message_and_the_models_form_and_given_run_app_and_objects():
    run = SimpleNamespace(run=SimpleNamespace(SerializeToString=lambda: b"the run"))
    app = SimpleNamespace(fab=SimpleNamespace(content=b"the app"))
    asked = Asked(
        name="ab" * 32, run=7, message=None, contents={"x": b"one", "y": b""}, about=(run, app)
    )
    model = {"weights": Form((64, 10), "float32"), "bias": Form((10,), "float64")}
    question = asked.question(model)
    assert question == Question(
        {
            "message": "ab" * 32,
            "arrays": [["weights", "float32", (64, 10)], ["bias", "float64", (10,)]],
        },
        [b"the run", b"the app", b"one", b""],
    )
