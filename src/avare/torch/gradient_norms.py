"""The gradient norm of each example over all parameters, exactly, from the backward pass that trains."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from avare.torch.layers import Part, Recomputed, Rule, refusal, rule_of
from avare.torch.layers.parts import chunks, square_rows, squares
from avare.torch.layers.recomputed import Fallback, tensors_of
from avare.torch.norms import NotFinite, check_not_finite

_SPREADING = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "ExpandBackward0")
_POSITIONS = (
    "positions that all examples have in common go in once for each, as torch.arange(T).expand(n, T), or exclude= "
    "leaves them out"
)


class GradientNorms:
    r"""The norm of each example's gradient in all trained parameters, from the same backward pass.

    Each layer's input, and the gradient of its output, are kept as the pass goes by; from
    them the norm of each example's part follows, most often without its gradient being
    written down. The gradients of the parameters are not touched, and come out bit by bit
    as they would without.

    Made once, it may stay attached for a whole training::

        norms = GradientNorms(model).attach()
        for x, y, weight in batches:
            loss = F.cross_entropy(model(x), y, reduction="none")
            (weight * loss).mean().backward()
            n = norms(weight)

    What must hold:

    - The batch is the first dimension of what goes into each layer and comes out of it, and
      no example's loss depends on another example: BatchNorm is refused, but in evaluation
      mode, where it is a factor and an offset. Positions that all examples have in common go into
      an embedding as ``torch.arange(T).expand(n, T)``; without, they are refused where that is seen.
    - The loss is the mean, or the sum, over the batch of weight times the example's own loss.

    A parameter used several times, by one module or by many, counts once, with the sum of
    its gradients. Frozen parameters do not count. Forward passes without gradients keep nothing.

    Rules are known for ``Linear``, ``Conv1d`` to ``Conv3d``, ``Embedding``, ``LayerNorm``,
    ``RMSNorm``, ``GroupNorm``, ``InstanceNorm`` without running statistics, and ``BatchNorm`` in
    evaluation mode. A module with other parameters is named in an error, unless ``fallback``
    says what to do.

    Cost: for linear layers two passes over inputs and gradients; for a convolution about that of
    its weight's gradient. Memory: inputs and output gradients of all layers, until the norms are
    asked for; beyond these, some tens of megabytes at most, or one gradient where that is larger.

    Parameters
    ----------
    model
        Any module; ``DistributedDataParallel`` is looked into, and then each process has
        the norms of its own examples.
    fallback
        For modules without a rule, the largest that own such parameters, with all below them:
        None for an error; "vmap" to run each of them a second time, by ``torch.func``, and get
        its gradients example by example; "loop" for the same where ``vmap`` does not know an
        operation, one example after another. Such a module must not draw random numbers; this
        is checked.
    exclude
        Parameters, and modules with all below them, that do not count, as if they were frozen; what
        they are used for is not looked at. They are trained all the same.
    recompute
        Modules to be run a second time, with all below them, as ``fallback`` says ("vmap" if None),
        although there are rules for what they are made of: say one in which the first dimension
        is not the batch in places.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[0.0], [0.0]])
    >>> weight = torch.tensor([0.5, 1.5])
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> with GradientNorms(model) as norms:
    ...     loss = (model(x) - y).square().sum(dim=1)
    ...     (weight * loss).mean().backward()
    >>> norms(weight)
    tensor([70.,  2.])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        fallback: Fallback | None = None,
        exclude: Iterable[nn.Module | nn.Parameter] = (),
        recompute: Iterable[nn.Module] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is of type {type(model).__name__}: must be a torch.nn.Module")
        if fallback not in (None, "vmap", "loop"):
            raise ValueError(f"fallback = {fallback!r}: must be None, 'vmap' or 'loop'")
        if isinstance(model, nn.DataParallel):
            raise ValueError("model is a DataParallel, whose copies come and go: use DistributedDataParallel")
        if hasattr(model, "_orig_mod"):
            raise ValueError("model is compiled: give what torch.compile was given, and train that")
        self._model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        for name, module in self._model.named_modules():
            _refuse(name, module)
        self._names = {parameter: name for name, parameter in self._model.named_parameters()}
        self._excluded = _members("exclude", exclude, self._model)
        chosen = _members("recompute", recompute, self._model, modules=True)
        self._places = list(_survey("", self._model, self._excluded, chosen, set()))
        unknown = [(name, module) for name, module, rule in self._places if rule is None and module not in chosen]
        if unknown and fallback is None:
            raise ValueError(
                f"no rule is known for the parameters of {', '.join(_owner(*each) for each in unknown)}: "
                "fallback='vmap' runs such modules a second time, example by example, exclude= leaves them out"
            )
        self._fallback: Fallback = fallback or "vmap"
        covered = {p for _, module, rule in self._places for p in module.parameters(recurse=rule is None)}
        self._frozen = [parameter for parameter in self._names if parameter not in covered | self._excluded]
        self._handles: list[Any] = []
        self._called: list[nn.Module] = []  # in the forward pass at hand
        self._looked: list[nn.Module] | None = None  # those of the pass last looked at for uses that no module sees
        self._passes = 0
        self._vectors: dict[Any, tuple[str, torch.Size]] = {}  # what came out of embeddings that were given a vector
        self._uses: list[_Use] = []
        self._reached: set[nn.Parameter] = set()  # by a gradient, in whatever way
        self._pass: int | None = None  # the backward pass that the uses are of
        self._several = False
        self._busy = False
        self._within = 0  # so many modules that stand for all below them

    def attach(self) -> Self:
        """Start to keep what passes by, until `detach`. Cost: some microseconds a module and pass."""
        if not self._handles:
            self._within = 0
            for name, module, rule in self._places:  # before other hooks, for these may change the output
                options = {"prepend": True, "with_kwargs": True, "always_call": rule is None}
                self._handles.append(module.register_forward_hook(_Hook(self._seen, name, rule), **options))
                if rule is None:
                    self._handles.append(module.register_forward_pre_hook(_Hook(self._entered), prepend=True))
            self._handles.append(self._model.register_forward_hook(_Hook(self._ended), with_kwargs=True))
            for parameter in self._names:
                if parameter.requires_grad and parameter not in self._excluded:
                    self._handles.append(parameter.register_hook(_Reach(self._reached, parameter)))
        return self

    def detach(self) -> None:
        """Take all hooks off the model. The norms of the last pass may still be asked for."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def reset(self) -> None:
        """Forget what was kept."""
        self._called, self._vectors = [], {}
        self._uses = []
        self._reached.clear()
        self._pass = None
        self._several = False

    def __call__(
        self,
        weight: ArrayLike | Tensor | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        not_finite: NotFinite = "raise",
    ) -> Tensor:
        """The norms of the last backward pass, and forget it.

        To be asked after each backward pass and before the next forward pass, which starts anew.

        Parameters
        ----------
        weight
            What the loss of each example was multiplied by, of shape (batch,), none 0; None if
            by nothing. The norms are those without it. A factor common to all, as a
            ``GradScaler`` has, may be put in as well.
        reduction
            Whether the loss was the "mean" over the batch, or the "sum".
        not_finite
            "raise" an error where a gradient is not finite, or "keep" a norm that is not finite
            either: gradients in float16 overflow in the first steps with a ``GradScaler``, which
            then leaves the step out. ``loader.update(index, norms, not_finite="skip")`` takes it.

        Returns
        -------
        Tensor
            Of shape (batch,), detached, in float32 or, if the model is, float64.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction = {reduction!r}: must be 'mean' or 'sum'")
        check_not_finite(not_finite)
        if not self._uses:
            raise RuntimeError("no backward pass to give the norms of: attach, call the model, then loss.backward()")
        if self._several:
            raise RuntimeError(
                "several backward passes without a forward pass between them, or one within another, as reentrant "
                "checkpoints have: ask for the norms after each, or make checkpoints with use_reentrant=False"
            )
        count = self._count()
        factors = _factors(weight, count)
        self._check()
        device = self._uses[0].device
        self._busy = True  # so that what is run a second time is not kept
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                norms = self._squares(count).sqrt_() if count else torch.zeros(0, device=device)
        finally:
            self._busy = False
        if reduction == "mean":
            norms *= count
        if factors is not None:
            norms /= factors.to(norms)
        wrong = (~torch.isfinite(norms)).nonzero()
        if len(wrong) and not_finite == "raise":
            raise ValueError(f"norms[{wrong[0].item()}] = {norms[wrong[0]].item()}: the gradient is not finite")
        self.reset()
        return norms

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.detach()
        if kind is not None:
            self.reset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_title('', self._model)}{', attached' if self._handles else ''})"

    # --- what the hooks do ------------------------------------------------------------

    def _entered(self, *_: object) -> None:
        self._within += 1

    def _seen(self, name: str, rule: Rule | None, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Keep what went into a module, and see to it that the gradient of what came out is kept."""
        if rule is None:
            self._within -= 1
        if self._busy or self._within or not torch.is_grad_enabled():
            return
        _refuse(name, module)
        if (self._uses or self._reached) and not _in_backward():  # where parts of the model may be run again
            self.reset()
        own = [p for p in module.parameters(recurse=rule is None) if p not in self._excluded]
        outputs = [_base(output)] if rule is not None else tensors_of(output)
        trained = any(parameter.requires_grad for parameter in own)
        if not trained or not any(each.requires_grad for each in outputs):
            return
        if not _in_backward():
            self._called.append(module)
        if rule is not None:
            use = _Use(name, module, rule, args[0] if args else kwargs["input"], output.shape)
            if use.is_of_a_vector and not _in_backward():
                self._vectors[output.grad_fn] = _title(name, module), output.shape
        else:
            kept = Recomputed(module, args, kwargs, outputs, self._fallback, self._excluded)
            use = _Use(name, module, None, kept, None)
        for j, each in enumerate(outputs):
            if each.requires_grad:
                each.register_hook(lambda gradient, j=j: self._arrived(use, j, gradient))

    def _arrived(self, use: "_Use", j: int, gradient: Tensor) -> None:
        """Keep the gradient of what came out of a module."""
        now = torch._C._current_graph_task_id()
        if self._pass is None:
            self._pass = now
        self._several |= self._pass != now
        if use.passed != now:
            use.passed = now
            use.gradients = {}
            self._uses.append(use)
        kept = gradient.detach() if use.shape is None else gradient.detach().reshape(use.shape)
        # Of a single example, a parameter may take the very tensor as its gradient, which is then clipped or added to.
        use.gradients[j] = kept.clone() if kept.shape[:1] == (1,) else kept

    def _ended(self, _: str, __: None, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """After a forward pass, look for uses of parameters that no module has seen, and for positions.

        Only where other modules were called than in the pass before, and at passes 1, 2, 4, 8, ...,
        for it takes some microseconds an operation.
        """
        if self._busy or not torch.is_grad_enabled():
            return
        called, self._called = self._called, []
        vectors, self._vectors = self._vectors, {}
        self._passes += 1
        if called == self._looked and self._passes & (self._passes - 1):
            return
        known = {p for _, each, rule in self._places if rule is not None for p in each.parameters(recurse=False)}
        whole = {p for _, each, rule in self._places if rule is None for p in each.parameters()}
        watched = known - whole - self._excluded
        calls = Counter(parameter for each in called for parameter in each.parameters(recurse=False))
        uses: Counter[nn.Parameter] = Counter()
        for node, source in _edges(output):
            if hasattr(source, "variable"):
                uses[source.variable] += 1
            else:
                _check_spread(node, source, vectors)
        for parameter, count in uses.items():
            if parameter in watched and count > calls[parameter]:
                raise ValueError(self._unseen(parameter))
        self._looked = called

    # --- from what was kept to the norms ----------------------------------------------

    def _count(self) -> int:
        """How many examples there are; an error if the uses do not agree."""
        first = self._uses[0]
        for use in self._uses:
            if use.count != first.count:
                this, that = _title(use.name, use.module), _title(first.name, first.module)
                hint = f"; {_POSITIONS}" if use.is_of_a_vector or first.is_of_a_vector else ""
                raise ValueError(
                    f"{this} has a batch of {use.count}, {that} one of {first.count}: "
                    f"the first dimension must be the batch, all through the model{hint}"
                )
        return first.count

    def _check(self) -> None:
        """Raise an error if something has a gradient that cannot be had example by example, or was changed since."""
        for use in self._uses:
            use.check()
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise ValueError(f"{self._names[parameter]} was frozen, and is not any more: make GradientNorms anew")
        covered = {p for use in self._uses for p in use.module.parameters(recurse=use.rule is None)}
        for parameter in self._reached - covered:
            raise ValueError(self._unseen(parameter))

    def _unseen(self, parameter: nn.Parameter) -> str:
        return (
            f"{self._names[parameter]} is used other than by a call of the module that owns it, where its gradients "
            "are not seen: call the module, or let another own it too (as in output.weight = embedding.weight); "
            "or what came out of it was a view, and changed in place"
        )

    def _squares(self, count: int) -> Tensor:
        """The squared norm of each example's gradient, as it was in the pass."""
        recomputed = [use for use in self._uses if use.rule is None]
        written: dict[nn.Parameter, list[Part]] = {p: [] for use in recomputed for p in use.kept.parameters}
        summed: dict[nn.Parameter, list[Part]] = {}
        for use in self._uses:
            for parameter, part in use.parts():
                if parameter in self._excluded:
                    continue
                (written if parameter in written else summed).setdefault(parameter, []).append(part)
        total = torch.zeros(count, device=self._uses[0].device)
        for parameter, parts in summed.items():
            found = squares(parts)
            if found is None:
                written[parameter] = parts
            else:
                total = total + found
        return total + _squares_written(recomputed, written, count) if written else total


class _Use:
    """One use of a module: what went in, and the gradient of what came out."""

    __slots__ = ("_versions", "gradients", "kept", "module", "name", "passed", "rule", "shape")

    def __init__(self, name: str, module: nn.Module, rule: Rule | None, kept: Any, shape: Any) -> None:
        self.name = name
        self.module = module
        self.rule = rule
        self.kept = kept.detach() if rule is not None else kept
        self.shape = shape
        self.passed: int | None = None  # the backward pass that its gradients are of
        self.gradients: dict[int, Tensor] = {}
        self._versions = kept._version if rule is not None else None

    @property
    def is_of_a_vector(self) -> bool:
        """Whether it looked up one row an example, or rows for positions that all examples have in common."""
        return isinstance(self.module, nn.Embedding) and self.rule is not None and self.kept.ndim == 1

    @property
    def device(self) -> Any:
        return next(iter(self.gradients.values())).device

    @property
    def count(self) -> int:
        """Examples: the first dimension of what came out."""
        shape = next(iter(self.gradients.values())).shape
        if not shape:
            raise ValueError(f"{_title(self.name, self.module)}: its output is a single number, without a batch")
        return int(shape[0])

    def check(self) -> None:
        """Raise an error if what was kept has been changed."""
        if self.rule is None:
            changed = self.kept.changed
        else:
            needed = self.module.weight is not None and self.module.weight.requires_grad
            changed = needed and self.kept._version != self._versions
        if changed:
            raise ValueError(
                f"{_title(self.name, self.module)}: its input{'' if self.rule else ', or a parameter,'} was changed "
                "in place after the forward pass: ask for the norms before"
            )

    def parts(self) -> list[tuple[nn.Parameter, Part]]:
        """What it adds to the gradient of each parameter, in float32 or wider."""
        if self.rule is None:
            return []
        inputs, gradient = self.kept, self.gradients[0]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        if inputs.is_floating_point():
            wide = torch.promote_types(wide, inputs.dtype)
            inputs = inputs.to(wide)
        try:
            return list(self.rule(self.module, inputs, gradient.to(wide)))
        except ValueError as error:
            raise ValueError(f"{_title(self.name, self.module)}: {error}") from None

    def rows(self, examples: slice) -> dict[nn.Parameter, Tensor]:
        """The gradients of some examples, by running the module again."""
        try:
            result: dict[nn.Parameter, Tensor] = self.kept.rows(examples, self.gradients)
        except ValueError as error:
            raise ValueError(f"{_title(self.name, self.module)}: {error}") from error
        return result


class _Hook:
    """A hook of a module. A copy of it, as a copied or pickled model has, does nothing."""

    def __init__(self, call: Callable[..., None] | None = None, name: str = "", rule: Rule | None = None) -> None:
        self._call = call
        self._name = name
        self._rule = rule

    def __call__(self, *arguments: Any) -> None:
        if self._call is not None:
            self._call(self._name, self._rule, *arguments)

    def __deepcopy__(self, memo: Any) -> "_Hook":
        return _Hook()

    def __reduce__(self) -> Any:
        return _Hook, ()


class _Reach:
    """A hook that notes that a parameter has got a gradient."""

    def __init__(self, reached: set[nn.Parameter], parameter: nn.Parameter) -> None:
        self._reached = reached
        self._parameter = parameter

    def __call__(self, gradient: Tensor) -> None:
        self._reached.add(self._parameter)


def _survey(
    name: str, module: nn.Module, excluded: set[Any], chosen: set[Any], visited: set[nn.Module]
) -> Iterator[tuple[str, nn.Module, Rule | None]]:
    """The modules to look at, each once, with their rules; those without rule stand for all below them."""
    if module in visited:  # under another parent: a second hook would count its gradient twice
        return
    visited.add(module)
    rule = rule_of(module) if module not in chosen else None
    if rule is not None:
        yield name, module, rule
    elif module in chosen or any(p.requires_grad and p not in excluded for p in _own(module)):
        yield name, module, None
    else:
        for child_name, child in module.named_children():
            yield from _survey(f"{name}.{child_name}" if name else child_name, child, excluded, chosen, visited)


def _members(argument: str, members: Iterable[Any], model: nn.Module, *, modules: bool = False) -> set[Any]:
    """The parameters that were named by themselves or by modules, or the modules; checked to be the model's own."""
    known = {*model.modules(), *(() if modules else model.parameters())}
    found: set[Any] = set()
    for place, member in enumerate(members):
        if not isinstance(member, nn.Module if modules else nn.Module | nn.Parameter):
            kind = "a module" if modules else "a module or a parameter"
            raise TypeError(f"{argument}[{place}] is of type {type(member).__name__}: must be {kind} of the model")
        if member not in known:
            raise ValueError(f"{argument}[{place}] ({type(member).__name__}) is not part of the model")
        found.update([member] if modules or isinstance(member, nn.Parameter) else member.parameters())
    return found


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a module itself, and those that these are made from at each call."""
    yield from module.parameters(recurse=False)
    if nn.utils.parametrize.is_parametrized(module):
        yield from module.parametrizations.parameters()


def _refuse(name: str, module: nn.Module) -> None:
    reason = refusal(module)
    if reason is not None:
        raise ValueError(f"{_title(name, module)}: {reason}")


def _title(name: str, module: nn.Module) -> str:
    return f"{name or 'model'} ({type(module).__name__})"


def _owner(name: str, module: nn.Module) -> str:
    return f"{name or 'model'} ({type(module).__name__}: {', '.join(dict(module.named_parameters(recurse=False)))})"


def _base(output: Tensor) -> Tensor:
    """What a layer's output is a mere view of, if it is: where that is changed in place, gradients pass it by."""
    base = output._base
    whole = base is not None and base.numel() == output.numel() and base.is_contiguous() and output.is_contiguous()
    return base if whole else output


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() >= 0)


def _edges(output: Any) -> Iterator[tuple[Any, Any]]:
    """The operations that made what came out of a model, each with those, or parameters, that it took from."""
    stack = [each.grad_fn for each in tensors_of(output) if each.grad_fn is not None]
    visited = set(stack)
    while stack:
        node = stack.pop()
        for source, _ in node.next_functions:
            if source is None:
                continue
            yield node, source
            if source not in visited and not hasattr(source, "variable"):
                visited.add(source)
                stack.append(source)


def _check_spread(node: Any, source: Any, vectors: dict[Any, tuple[str, torch.Size]]) -> None:
    """Raise an error if an operation spreads what came out of an embedding over a dimension before its first."""
    if not vectors or node.name() not in _SPREADING:
        return
    before = source.name() == "UnsqueezeBackward0"  # as in embedding(positions)[None]
    origin = source.next_functions[0][0] if before else source
    if origin not in vectors:
        return
    title, shape = vectors[origin]
    result, taken = _shape_of(node), _shape_of(source)
    if len(result) > len(shape) and result[0] > 1 and shape[0] > 1 and not (before and taken[:1] == shape[:1]):
        raise ValueError(
            f"{title}: what came out of it is spread over the examples, none of which has it alone; {_POSITIONS}"
        )


def _shape_of(node: Any) -> tuple[int, ...]:
    """Of what an operation gave; empty where PyTorch does not say."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()


def _factors(weight: ArrayLike | Tensor | None, count: int) -> Tensor | None:
    """The absolute weights, checked."""
    if weight is None:
        return None
    values = torch.as_tensor(weight).detach()
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(f"weight has dtype {values.dtype}: must hold real numbers")
    if values.shape != (count,):
        raise ValueError(f"weight has shape {tuple(values.shape)}: must be ({count},), one for each example")
    wrong = (~torch.isfinite(values) | (values == 0)).nonzero()
    if len(wrong):
        place = wrong[0].item()
        reason = "the norm cannot be known from this pass" if values[place] == 0 else "must be finite"
        raise ValueError(f"weight[{place}] = {values[place].item()}: {reason}")
    return values.abs()


def _squares_written(uses: list[_Use], others: dict[nn.Parameter, list[Part]], count: int) -> Tensor:
    """The squared norms of gradients that are written down, some examples at a time."""
    results = []
    for examples in chunks(count, sum(parameter.numel() for parameter in others)):
        totals: dict[nn.Parameter, Tensor] = {}
        found = [item for use in uses for item in use.rows(examples).items()]
        found += [(parameter, part.rows(examples)) for parameter, parts in others.items() for part in parts]
        for parameter, rows in found:
            totals[parameter] = totals[parameter] + rows if parameter in totals else rows
        results.append(sum(square_rows(rows) for rows in totals.values()))
    return torch.cat(results)
