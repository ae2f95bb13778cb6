"""Drop-in subclasses of torch.nn.RMSNorm and torch.nn.LayerNorm."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normkit import Convention, _checks
from normkit._layer_norm import LAYER_NORM
from normkit._norm import check_options, saved_options
from normkit._rms_norm import RMS_NORM

from ._functional import HOST, layer_norm, rms_norm

_Shape = int | Sequence[int]


class _CarriesOptions(nn.Module):
    """Saves beside the parameters what they were trained with, and warns where it differs.

    It lies in the state dict's metadata, so that the keys are those of torch.nn's layer.
    """

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            metadata[prefix[:-1]]["normkit"] = _options(self)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        own = _options(self)
        saved = local_metadata.get("normkit", own)
        if saved != own:
            layer = f"{prefix}{type(self).__name__}"
            warnings.warn(_checks.other_options(layer, saved, own), stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def _options(layer: Any) -> dict[str, Any]:
    norm = RMS_NORM if isinstance(layer, nn.RMSNorm) else LAYER_NORM
    return saved_options(norm, layer.eps, layer.convention)


class RMSNorm(_CarriesOptions, nn.RMSNorm):
    """RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, in place of `torch.nn.RMSNorm`.

    The same constructor, state dict, repr and isinstance; the numbers are those of
    `normkit.torch.rms_norm`.

    Args:
        normalized_shape: Sizes of the normalised axes, an int for one.
        eps: Added to the mean square, in units of x squared. None is the
            convention's: for "standard" 1e-6, for "torch" 2^-23, or 2^-52 for float64.
        elementwise_affine: Whether there is a ``weight``, initialised to ones.
        device, dtype: Of the parameters.
        bias: Whether there is a ``bias`` too, initialised to zeros.
        axis: The normalised axes; None for the last ones. ``axis=1`` serves channels-first images.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.

    Shape:
        Input and output are alike; their sizes along ``axis`` are ``normalized_shape``.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text.

    Example:
        >>> import torch
        >>> layer = RMSNorm(4, eps=0.0)
        >>> layer(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).detach()
        tensor([[0.3651, 0.7303, 1.0954, 1.4606]])

    Source: Zhang and Sennrich 2019, arXiv:1910.07467; torch.nn.RMSNorm.
    """

    axis: int | tuple[int, ...]
    convention: str | Convention

    def __init__(
        self,
        normalized_shape: _Shape,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = False,
        axis: int | Sequence[int] | None = None,
        convention: str | Convention = "standard",
    ) -> None:
        check_options(RMS_NORM, eps, convention)
        if bias and not elementwise_affine:
            raise _checks.bias_without_affine()
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        if bias:
            self.bias = nn.Parameter(torch.zeros(self.normalized_shape, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.axis = _axis(axis, self.normalized_shape)
        self.convention = convention

    def reset_parameters(self) -> None:
        """Set weight to ones and bias to zeros."""
        super().reset_parameters()
        bias = getattr(self, "bias", None)  # not there yet when torch.nn's constructor calls this
        if bias is not None:
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``."""
        _check_shape(x, self)
        return rms_norm(
            x, self.weight, self.bias, eps=self.eps, axis=self.axis, convention=self.convention
        )

    def extra_repr(self) -> str:
        """torch.nn's text, and what is not its default."""
        bias = ", bias=True" if self.bias is not None else ""
        return super().extra_repr() + bias + _extra_repr(self)


class LayerNorm(_CarriesOptions, nn.LayerNorm):
    """LayerNorm: y = (x - mean) / sqrt(var + eps) * weight + bias, in place of torch.nn's.

    The same constructor, state dict, repr and isinstance as `torch.nn.LayerNorm`; the numbers
    are those of `normkit.torch.layer_norm`.

    Args:
        normalized_shape: Sizes of the normalised axes, an int for one.
        eps: Added to the variance, in units of x squared; None for the convention's.
        elementwise_affine: Whether there is a ``weight``, initialised to ones.
        bias: Whether there is a ``bias`` beside the weight, initialised to zeros.
        device, dtype: Of the parameters.
        axis: The normalised axes; None for the last ones. ``axis=1`` serves channels-first images.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.

    Shape:
        Input and output are alike; their sizes along ``axis`` are ``normalized_shape``.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text.

    Example:
        >>> import torch
        >>> layer = LayerNorm(4, eps=0.0)
        >>> layer(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).detach()
        tensor([[-1.3416, -0.4472,  0.4472,  1.3416]])

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; torch.nn.LayerNorm.
    """

    axis: int | tuple[int, ...]
    convention: str | Convention

    def __init__(
        self,
        normalized_shape: _Shape,
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        axis: int | Sequence[int] | None = None,
        convention: str | Convention = "standard",
    ) -> None:
        check_options(LAYER_NORM, eps, convention)
        options: Any = (normalized_shape, eps, elementwise_affine, bias, device, dtype)
        super().__init__(*options)  # torch.nn's eps is a float, which it does nothing with
        self.axis = _axis(axis, self.normalized_shape)
        self.convention = convention

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input``."""
        _check_shape(input, self)
        return layer_norm(
            input, self.weight, self.bias, eps=self.eps, axis=self.axis, convention=self.convention
        )

    def extra_repr(self) -> str:
        """torch.nn's text, and what is not its default."""
        return super().extra_repr() + _extra_repr(self)


def _axis(axis: Any, normalized_shape: Sequence[int]) -> int | tuple[int, ...]:
    if axis is None:
        return tuple(range(-len(normalized_shape), 0))
    return axis if isinstance(axis, int) else tuple(axis)


def _check_shape(x: Tensor, layer: RMSNorm | LayerNorm) -> None:
    _checks.same_framework(HOST, x=x)
    _checks.normalised_sizes(x.shape, _checks.axes(x.shape, layer.axis), layer.normalized_shape)


def _extra_repr(layer: RMSNorm | LayerNorm) -> str:
    axis = layer.axis
    trailing = axis == _axis(None, layer.normalized_shape)
    convention = layer.convention
    return ("" if trailing else f", axis={axis}") + (
        "" if convention == "standard" else f", convention={convention!r}"
    )
