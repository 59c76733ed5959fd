"""What papers and other libraries call keys and choices of a spec, so that messages understand it.

None of these names is taken for a key: a spec means the same to every reader.
"""

from __future__ import annotations

# Another name of a key, and the key's own.
_KEYS = {
    "q": "rate",
    "sample_rate": "rate",
    "sampling_rate": "rate",
    "sampling_probability": "rate",
    "dataset_size": "reference_size",
    "num_examples": "reference_size",
    "lr": "learning_rate",
    "eta": "learning_rate",
    "step_size": "learning_rate",
    "wd": "weight_decay",
    "sigma": "noise_multiplier",
    "noise_scale": "noise_multiplier",
    "noise": "noise_multiplier",
    "max_grad_norm": "clipping_norm",
    "l2_norm_clip": "clipping_norm",
    "clip": "clipping_norm",
    "clip_norm": "clipping_norm",
    "eps": "target_epsilon",
    "epsilon": "target_epsilon",
    "batch_size": "expected_batch_size",
    "lot_size": "expected_batch_size",
    "epochs": "local_steps",
    "local_epochs": "local_steps",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "communication_rounds": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "num_workers": "workers",
    "optimizer": "name",
    "mu": "proximal_weight",
    "hidden_size": "hidden",
    "class": "target",
    "kwargs": "arguments",
}
# What is not the same in other units.
_REMARKS = {
    "epochs": "it counts steps of one batch each, not passes over the data",
    "local_epochs": "it counts steps of one batch each, not passes over the data",
    "noise_scale": "it is in units of the clipping norm",
    "noise": "it is in units of the clipping norm",
    "sigma": "it is in units of the clipping norm",
}
# Another name of what can be chosen, and its own here; the first that is among the choices.
_CHOICES: dict[str, tuple[str, ...]] = {
    "fedprox": ("pe-dpfl",),
    "dp-fedprox": ("pe-dpfl",),
    "dp-sgd": ("dp-fedavg",),
    "dpsgd": ("dp-fedavg",),
    "sgd": ("dp-fedavg", "fedavg"),
    "fedsgd": ("fedavg",),
    "adam": ("local-adam",),
    "adamw": ("dp-localadamw", "local-adamw"),
    "dp-adam": ("dp-localadamw",),
    "dp-fedadam": ("dp-fedopt",),
    "fedyogi": ("dp-fedopt",),
    "csv": ("table",),
    "tsv": ("table",),
    "parquet": ("table",),
    "npz": ("arrays",),
    "numpy": ("arrays",),
    "pandas": ("given",),
    "dataframe": ("given",),
    "torch": ("python", "given"),
    "custom": ("python", "given"),
    "lstm": ("python",),
    "logistic": ("mlp",),
    "linear": ("mlp",),
    "user": ("client",),
    "people": ("person",),
    "patient": ("person",),
    "subject": ("person",),
    "sample": ("record",),
    "example": ("record",),
    "uniform": ("fixed", "iid"),
    "subsampled": ("poisson",),
    "random": ("iid",),
    "non-iid": ("dirichlet",),
    "secure": ("release",),
    "deterministic": ("reproducible",),
    "step": ("constant",),
}


def key_of(name: str) -> str | None:
    """The key that another name stands for, if it is known."""
    return _KEYS.get(name.lower())


def remark(name: str) -> str:
    """What must be said of the key that another name stands for, in brackets; "" for nothing."""
    found = _REMARKS.get(name.lower())
    return f" ({found})" if found else ""


def choice_of(name: str, choices: list[str]) -> str | None:
    """The choice that another name stands for, if it is among these."""
    found = _CHOICES.get(name.lower().replace("_", "-"), ())
    return next((one for one in found if one in choices), None)
