"""Which rule goes with which layer, and which layers have none."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from avare.torch.layers.convolution import convolution
from avare.torch.layers.embedding import embedding
from avare.torch.layers.linear import linear
from avare.torch.layers.normalization import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from avare.torch.layers.parts import Part

Rule = Callable[[nn.Module, Tensor, Tensor], Iterable[tuple[nn.Parameter, Part]]]

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm3d: batch_norm,
    nn.SyncBatchNorm: batch_norm,
}


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a module, if it computes what its kind does from the parameters that its kind has."""
    for kind in type(module).__mro__:
        if kind in RULES:
            same = all(
                getattr(type(module), name, None) is getattr(kind, name, None) for name in ("forward", "_conv_forward")
            )
            return RULES[kind] if same and set(module._parameters) <= {"weight", "bias"} and _plain(module) else None
    return None


def refusal(module: nn.Module) -> str | None:
    """Why a module cannot be had, in its present mode, if so."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters have no shape yet: run the model once first"
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return (
            "it normalises by the statistics of the batch, so that the loss of an example depends on the others, and "
            "no gradient is an example's own: put it in evaluation mode, or use GroupNorm or LayerNorm instead"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "it keeps running statistics of all examples: make it with track_running_stats=False"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
        return "scale_grad_by_freq divides by counts over the batch, so that no gradient is an example's own"
    if any(parameter.is_complex() for parameter in module.parameters(recurse=False)):
        return "it has complex parameters"
    return None


def _plain(module: nn.Module) -> bool:
    """Whether the weight is a parameter itself, and not made from others at each call."""
    return "weight" in module._parameters
