"""How the pictures of a widget are packed into few bytes.

Most of a picture - axes, numbers, a background - is the same on all frames. That part is stored
once, as the sheet that lies behind them; a frame is what differs, and transparent elsewhere.
"""

import base64
import io
import itertools

import numpy as np
from PIL import Image

SHADES = 64  # colours of a picture: at half the bytes hardly a difference is seen


def grouped(pictures):
    """Divide pictures into groups that share a sheet: all of them, or those that differ in the last axis only.

    pictures: {(index, ...): pixels}, see `layers`. Whichever takes fewer bytes is returned, as lists
    of places.

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    small = {place: picture[::3, ::3] for place, picture in pictures.items()}  # enough to choose by
    by_last = [list(g) for _, g in itertools.groupby(pictures, lambda place: place[:-1])]

    def size(groups):
        return sum(_bytes(*layers(small, group)) for group in groups)

    return min(([list(pictures)], by_last), key=size)


def layers(pictures, places):
    """Return the sheet of some pictures, and what lies on it: {place: picture}, as data URIs.

    pictures: {place: pixels}, each (height, width) of uint32, the four bytes of a colour.

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    sheet = _majority([pictures[place] for place in places])
    overlays = {}
    for place in places:
        differs = pictures[place] != sheet
        # two pixels more at each edge: where the browser scales a picture, edges mix with neighbours
        for axis in (0, 1):
            differs = np.any([np.roll(differs, by, axis) for by in range(-2, 3)], axis=0)
        overlays[place] = _webp(pictures[place], differs)
    return _webp(sheet, np.full(sheet.shape, True)), overlays


def _majority(pictures):
    """Return at each pixel the colour that most pictures have there, should more than half agree.

    The vote of Boyer and Moore: a candidate gains with each equal colour, loses with each other one,
    and is replaced where it has nothing left.
    """
    sheet, votes = pictures[0].copy(), np.ones(pictures[0].shape, dtype=np.int16)
    for picture in pictures[1:]:
        replaced = (votes == 0) & (picture != sheet)
        sheet[replaced] = picture[replaced]
        votes += np.where(picture == sheet, 1, -1).astype(np.int16)
    return sheet


def _webp(picture, shown):
    """Return pixels as a data URI, transparent where the mask `shown` is false."""
    colours = np.zeros((*picture.shape, 4), dtype=np.uint8)
    colours[shown] = _few_shades(picture[shown])
    packed = io.BytesIO()
    Image.fromarray(colours).save(packed, "webp", lossless=True, quality=80, method=4)
    return f"data:image/webp;base64,{base64.b64encode(packed.getvalue()).decode()}"


def _few_shades(pixels):
    """Return pixels in at most `SHADES` colours, each the mean of those that it stands for."""
    pixels = pixels[:, None].view(np.uint8)
    if not len(pixels):
        return pixels
    few = Image.fromarray(pixels[None]).convert("RGB")
    few = few.quantize(SHADES, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    shades = np.asarray(few).ravel()
    sums = np.stack([np.bincount(shades, weights=channel) for channel in pixels.T], axis=1)
    counts = np.maximum(np.bincount(shades), 1)[:, None]
    return (sums / counts).round().astype(np.uint8)[shades]


def _bytes(sheet, overlays):
    return len(sheet) + sum(map(len, overlays.values()))
