"""Clipping of gradients, each weight's by itself or all together, before their optimizer's step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from htrain.errors import ClusterError
from htrain.spec.fields import Kinds, Rate, Section, about

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options


@dataclass(frozen=True)
class Clip(Section):
    """What bounds the gradient of a weight."""


@dataclass(frozen=True)
class NoClip(Clip):
    """Gradients are as they are."""

    kind = "none"


@dataclass(frozen=True)
class ClipValue(Clip):
    """Each number of a gradient is at most `max_value` in size, as torch.nn.utils.clip_grad_value_ has it."""

    kind = "value"
    max_value: Annotated[Rate, about("The largest size of a number of a gradient.")] = 1.0


@dataclass(frozen=True)
class ClipNorm(Clip):
    """The gradient of each weight has at most this Euclidean norm, as torch.nn.utils.clip_grad_norm_ of that weight alone has it."""

    kind = "norm"
    max_norm: Annotated[Rate, about("The largest Euclidean norm of the gradient of a weight.")] = 1.0


@dataclass(frozen=True)
class ClipGlobalNorm(Clip):
    """The gradients of all dense weights of a step have at most this Euclidean norm together, as torch.nn.utils.clip_grad_norm_ of all has it."""

    kind = "global_norm"
    max_norm: Annotated[Rate, about("The largest Euclidean norm of the gradients of all dense weights together.")] = 1.0

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError where the weights of a step are on several devices."""
        if cluster.group_ps:
            raise ClusterError(
                f"dense_clip global_norm is about the dense weights of a step together, and {cluster.group_ps} group PSs would have them apart from the "
                "trainers: set group_ps: 0, or clip each weight by itself (dense_clip: norm)"
            )


CLIPS: Kinds = {kind.kind: kind for kind in (NoClip, ClipValue, ClipNorm, ClipGlobalNorm)}
"""What bounds gradients of dense weights, as users name it."""
