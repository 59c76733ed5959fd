"""Where a model's trainable parameters are used, and how each place hands over its gradients.

`sites_of` finds the places, each trainable parameter in exactly one of them:

- "layer": a layer that book-keeping knows (`layers`), whose forward is replaced.
- "pair": a low-rank pair with the layer that it adapts (`low_rank`), likewise.
- "vmap": a module that it does not know, which runs under vmap with one copy of its parameters a
  record (`_UnderVmap`).
- "copies": a parameter that a larger module uses itself (a class token, a position embedding),
  swapped for one copy a record.

`Pass.watching` replaces forwards and parameters for one forward and backward pass, and puts them
back. A `Record` holds what came of one place: its per-record gradients and their norms.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from dpfedadamw.clipping import layers as layer_functions
from dpfedadamw.clipping import low_rank
from dpfedadamw.clipping.forms import GradientForm
from dpfedadamw.clipping.layers import Receiver
from dpfedadamw.clipping.low_rank import LowRankPair
from dpfedadamw.clipping.people import Groups
from dpfedadamw.clipping.short import ShortGradients
from dpfedadamw.clipping.tied import tied
from dpfedadamw.privacy.clipped_sum import ClippingError

LayerForward = Callable[[nn.Module, Tensor, Receiver], Tensor]

_KNOWN: tuple[tuple[type[nn.Module], LayerForward], ...] = (
    (nn.Linear, layer_functions.linear),
    (nn.Conv2d, layer_functions.convolution),
    (nn.LayerNorm, layer_functions.layer_norm),
    (nn.GroupNorm, layer_functions.group_norm),
    (nn.Embedding, layer_functions.lookup),
)
# Modules that use the parameters of modules inside them; they run under vmap as a whole.
_WHOLE = (nn.MultiheadAttention, nn.RNNBase)


class BookKeepingError(ClippingError):
    """Book-keeping cannot give this model's per-record gradients; other engines may."""


@dataclass(frozen=True)
class Site:
    """A place where parameters are used.

    Attributes:
        name: The module's name; the parameter's for a copied one.
        module: The module.
        parameters: Full names of its trainable parameters by "weight" or "bias"; by their own names
            where the module runs under vmap or is a low-rank pair; "weight" alone for a copied one.
        kind: "layer", "pair", "vmap" or "copies".
        forward: The layer's forward, for "layer".
        pair: The low-rank pair, for "pair".
    """

    name: str
    module: nn.Module
    parameters: Mapping[str, str]
    kind: str
    forward: LayerForward | None = None
    pair: LowRankPair | None = None


def sites_of(model: nn.Module, *, pairs: bool = True) -> tuple[Site, ...]:
    """The places of all trainable parameters.

    Args:
        model: The model.
        pairs: Whether a low-rank pair and its layer are one place where possible.

    Raises:
        BookKeepingError: If a parameter is shared between modules other than an embedding table and
            an output layer, or a module's forward has been replaced on the instance.
    """
    sites: list[Site] = []
    owners: dict[Tensor, tuple[str, nn.Module]] = {}
    # How names begin inside the last module that is one place as a whole: they come right after it.
    covered: tuple[str, ...] = ()
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        own = {
            key: prefix + key
            for key, parameter in module._parameters.items()
            if parameter is not None and parameter.requires_grad
        }
        for key, full in own.items():
            other, user = owners.setdefault(module._parameters[key], (full, module))
            if other == full:
                continue
            if not _is_table_and_output(user, module, own):
                raise BookKeepingError(f"{other!r} and {full!r} are one parameter")
            own[key] = other
        if name.startswith(covered):
            continue
        found = _sites_of_module(name, module, own, low_rank.pair_of(module) if pairs else None)
        if found and "forward" in vars(module):
            raise BookKeepingError(f"the forward of {name or 'the model'!r} has been replaced")
        sites += found
        if any(site.kind in ("pair", "vmap") for site in found):
            covered = (prefix,)
    return tuple(sites)


def _is_table_and_output(one: nn.Module, other: nn.Module, trained: Mapping[str, str]) -> bool:
    """Whether two layers are an embedding table and the output layer that has its weight (`tied`).

    Args:
        one: The layer that stands first.
        other: The other one.
        trained: What is trained of the other.
    """
    kinds = {_known_forward(layer) for layer in (one, other)}
    return kinds == {layer_functions.lookup, layer_functions.linear} and trained.keys() == {
        "weight"
    }


def _sites_of_module(
    name: str, module: nn.Module, own: Mapping[str, str], pair: LowRankPair | None
) -> list[Site]:
    """The places of a module's own trainable parameters, or of all inside it as one."""
    prefix = f"{name}." if name else ""
    is_whole = isinstance(module, _WHOLE)
    if not (own or is_whole or pair):
        return []
    if pair is not None:
        inside = {f"{part}.weight": f"{prefix}{part}.weight" for part in pair.names}
        return [Site(name, module, inside, "pair", pair=pair)]
    forward = _known_forward(module)
    if forward is not None:
        return [Site(name, module, own, "layer", forward)]
    inside = {key: prefix + key for key, p in module.named_parameters() if p.requires_grad}
    alone = own.keys() == inside.keys() and not getattr(module, "accepts_copies", False)
    if is_whole or alone:
        return [Site(name, module, inside, "vmap")]
    return [Site(full, module, {"weight": full}, "copies") for full in own.values()]


def _known_forward(module: nn.Module) -> LayerForward | None:
    if isinstance(module, nn.Embedding) and (
        module.max_norm is not None or module.scale_grad_by_freq
    ):
        return None
    for kind, forward in (*_KNOWN, *_known_elsewhere()):
        same = isinstance(module, kind) and type(module).forward is kind.forward
        # A weight that is computed from other parameters is not among the module's own.
        if same and "weight" in module._parameters:
            return forward
    return None


def _known_elsewhere() -> tuple[tuple[type[nn.Module], LayerForward], ...]:
    """Layers of libraries that a model may come from; where it does, its library is loaded."""
    library = sys.modules.get("transformers.pytorch_utils")
    return () if library is None else ((library.Conv1D, layer_functions.transposed_linear),)


@dataclass
class Pass:
    """One forward and backward pass over a batch.

    Attributes:
        batch: Number of records b.
        records: What each site has left behind.
        short: The short gradients of all of them.
        people: Whose each record is, where people take the place of records.
    """

    batch: int
    records: list[Record] = field(default_factory=list)
    short: ShortGradients = field(default_factory=ShortGradients)
    people: Groups | None = None

    @property
    def gradients(self) -> int:
        """How many gradients are clipped: one a record, or one a person."""
        return self.batch if self.people is None else len(self.people)

    @contextlib.contextmanager
    def watching(self, sites: Sequence[Site]) -> Iterator[None]:
        """Let the sites of a model hand over their gradients, for the duration of a block."""
        with contextlib.ExitStack() as undo:
            for site in sites:
                if site.kind == "copies":
                    self._swap_parameter(site, undo)
                    continue
                vars(site.module)["forward"] = self._forward_of(site)
                undo.callback(vars(site.module).pop, "forward")
            yield

    def _swap_parameter(self, site: Site, undo: contextlib.ExitStack) -> None:
        key = site.name.rpartition(".")[2]
        parameters: dict[str, Any] = site.module._parameters
        original = parameters[key]
        parameters[key] = layer_functions.copies(original, self.batch, self._new(site).receiver())
        undo.callback(parameters.__setitem__, key, original)

    def _new(self, site: Site, key: str = "") -> Record:
        for known in self.records:
            # One weight in two layers: its gradient is the sum over both.
            if site.kind == known.site.kind == "layer" and site.parameters == known.site.parameters:
                return known
        record = Record(site, self.short, key, people=self.people)
        self.records.append(record)
        return record

    def _forward_of(self, site: Site) -> Callable[..., Any]:
        """The forward that stands for the module's own."""
        if site.kind == "vmap":
            return _UnderVmap(site, {key: self._new(site, key) for key in site.parameters}, self)
        if site.pair is not None:
            return self._forward_of_pair(site, site.pair)
        assert site.forward is not None
        return self._forward_of_layer(site, site.forward)

    def _forward_of_layer(self, site: Site, layer: LayerForward) -> Callable[[Tensor], Tensor]:
        record = self._new(site)

        def forward(input: Tensor) -> Tensor:
            if len(input) == 1 and isinstance(site.module, nn.Embedding):
                # Places that all records share, as 0, 1, 2, … for positions.
                input = input.expand(self.batch, *input.shape[1:])
            self.check_records(site, input)
            return layer(site.module, input, record.receiver())

        return forward

    def _forward_of_pair(self, site: Site, pair: LowRankPair) -> Callable[[Tensor], Tensor]:
        *down, up = (self._new(site, key) for key in site.parameters)

        def forward(input: Tensor) -> Tensor:
            self.check_records(site, input)
            of_down = down[0].receiver() if down else None
            return low_rank.low_rank(pair, input, of_down, up.receiver())

        return forward

    def check_records(self, site: Site, inputs: Tensor) -> None:
        """Refuse inputs whose first dimension is not the records'.

        Raises:
            BookKeepingError: If it is not.
        """
        layer = site.kind in ("layer", "pair") and not isinstance(site.module, nn.Embedding)
        if inputs.dim() < (2 if layer else 1) or len(inputs) != self.batch:
            raise BookKeepingError(
                f"layer {site.name!r} sees inputs of shape {tuple(inputs.shape)}, whose first "
                f"dimension is not the {self.batch} records'"
            )


@dataclass
class Record:
    """What the uses of one site in one pass have left behind.

    Attributes:
        site: The site.
        short: Where its short gradients go, with those of all other sites.
        key: Which of its parameters, where each has a record of its own; empty for all of them.
        uses: Number of uses in the forward pass.
        form: Its other per-record gradients, once a backward pass has come by; None for none.
        squared_norms: Their squared norms, float64 [b].
        method: How the norms were found.
        people: Whose each record is, where people take the place of records.
    """

    site: Site
    short: ShortGradients
    key: str = ""
    uses: int = 0
    form: GradientForm | None = None
    squared_norms: Tensor | None = None
    method: str = "no gradient"
    people: Groups | None = None

    def receiver(self) -> Receiver:
        """Where a use of the site hands over its gradients."""
        self.uses += 1
        keys = self.site.parameters
        return Receiver(self.key != "" or "weight" in keys, "bias" in keys, self.receive)

    def receive(self, form: GradientForm) -> None:
        """Take the gradients of one use."""
        if self.people is not None:
            form = self.people.of(form)
        if self.uses == 1:
            # While its inputs and output gradients are still in the processor's cache.
            self._measure(form)
            return
        # The norm of a sum over uses is not a sum of norms.
        if self.form is None:
            self.form = form
            return
        both = tied(self.form, form)
        self.form = self.form.kept().plus(form.kept()) if both is None else both

    def finish(self) -> Tensor | None:
        """Squared norms of what is not short over all uses, float64 [b]; None for nothing."""
        if self.form is not None and self.squared_norms is None:
            self._measure(self.form)
        return self.squared_norms

    def targets(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The views into the total that its form writes to, out of all by full name."""
        if self.key:
            return {"weight": views[self.site.parameters[self.key]]}
        return {key: views[full] for key, full in self.site.parameters.items()}

    def _measure(self, form: GradientForm) -> None:
        self.method = self.site.kind if self.site.kind in ("vmap", "copies") else form.method
        short, self.form = form.split_short()
        for name, gradients in short.items():
            self.short.add(self.site.parameters[self.key or name], gradients)
        if self.form is not None:
            self.squared_norms = self.form.squared_norms()


class _UnderVmap:
    """The forward of a module that runs one record at a time, with its own copy of the parameters.

    vmap maps tensors alone. What else the module returns is the same for each record: it is noted
    while a record runs, and put back among the tensors that come out.

    Args:
        site: Where it is.
        records: Takes the gradients of each parameter.
        watch: The pass.
    """

    def __init__(self, site: Site, records: Mapping[str, Record], watch: Pass) -> None:
        self._site, self._records, self._watch = site, records, watch
        self._parameters = dict(site.module.named_parameters())
        self._running = False
        # How the outputs nest, and each in its place: (output,) of what is no tensor, else None.
        self._structure: Any = None
        self._others: list[tuple[Any] | None] = []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        module = self._site.module
        if self._running:
            # vmap calls the module, whose forward this is.
            return type(module).forward(module, *arguments, **options)
        if any(isinstance(value, Tensor) for value in options.values()):
            raise BookKeepingError(f"layer {self._site.name!r} takes tensors by name")
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        for value in tensors:
            self._watch.check_records(self._site, value)
        batch, own = self._watch.batch, self._parameters
        values = {
            key: layer_functions.copies(own[key][None], batch, record.receiver())
            for key, record in self._records.items()
        }

        def one(values: dict[str, Tensor], tensors: list[Tensor]) -> list[Tensor]:
            given = iter(tensors)
            filled = tuple(
                next(given)[None] if isinstance(value, Tensor) else value for value in arguments
            )
            return self._noted(functional_call(module, values, filled, options))

        self._running = True
        try:
            found = iter(vmap(one, randomness="different")(values, tensors))
        finally:
            self._running = False
        outputs = [next(found) if other is None else other[0] for other in self._others]
        return pytree.tree_unflatten(outputs, self._structure)

    def _noted(self, found: Any) -> list[Tensor]:
        """One record's output tensors, without the dimension of the records."""
        outputs, self._structure = pytree.tree_flatten(found)
        self._others = [None if isinstance(one, Tensor) else (one,) for one in outputs]
        return [one[0] for one in outputs if isinstance(one, Tensor)]


def views_of(total: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Flat views into a total [d], one a parameter, in order."""
    parts = torch.split(total, [parameter.numel() for parameter in parameters.values()])
    return dict(zip(parameters, parts, strict=True))
