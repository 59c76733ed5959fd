"""Image files: decoded within bounds and resized by Pillow, with its antialiasing."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dpfedadamw.data.files import opened, where
from dpfedadamw.errors import DataError

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
_MOST_PIXELS = 50_000_000
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def decode(
    path: Path, channels: int, size: int | None, interpolation: str = "bilinear"
) -> NDArray[np.uint8]:
    """One image file as grey levels [channels, height, width]; see :func:`decode_stream`."""
    with opened(path) as stream:
        return decode_stream(stream, where(path), channels, size, interpolation)


def decode_stream(
    stream: IO[bytes], place: str, channels: int, size: int | None, interpolation: str = "bilinear"
) -> NDArray[np.uint8]:
    """One encoded image as grey levels [channels, height, width].

    Args:
        stream: A JPEG, PNG, BMP or WebP image.
        place: What messages call it.
        channels: 1 for grey, 3 for colour; the image's own are converted.
        size: Side of the square that it is resized to; None keeps its size.
        interpolation: "bilinear" or "bicubic".

    Raises:
        DataError: If it is no such image, cut off or of absurd size.
    """
    absurd = DataError(
        f"{place}: announces more than {_MOST_PIXELS} pixels; not an image of a data set"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(stream, formats=_FORMATS) as image:
                if math.prod(image.size) > _MOST_PIXELS:
                    raise absurd
                if image.mode.startswith(("I", "F")):
                    raise DataError(
                        f"{place}: has more than 8 bits a pixel; save the images with 8, by a "
                        "window that does not depend on them"
                    )
                picture = image.convert("L" if channels == 1 else "RGB")
    except UnidentifiedImageError:
        raise DataError(f"{place}: not an image of the kinds {', '.join(_FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise absurd from None
    except (OSError, SyntaxError, ValueError) as error:
        # Pillow tells a damaged file in many ways, SyntaxError among them.
        raise DataError(f"{place}: a damaged image ({error})") from None
    if size is not None:
        picture = picture.resize((size, size), _FILTERS[interpolation])
    pixels = np.asarray(picture, np.uint8)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)


def shrink(pixels: NDArray[np.uint8], size: int, interpolation: str) -> NDArray[np.uint8]:
    """Images [b, channels, height, width] as [b, channels, size, size], channel by channel."""
    small = np.empty((*pixels.shape[:2], size, size), np.uint8)
    for index in np.ndindex(pixels.shape[:2]):
        picture = Image.fromarray(np.ascontiguousarray(pixels[index]))
        small[index] = np.asarray(picture.resize((size, size), _FILTERS[interpolation]))
    return small
