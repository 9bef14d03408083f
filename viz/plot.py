"""What all pictures made with matplotlib share: figures without a window or global state, fonts, files.

matplotlib is the extra `tinyattn[plot]`; it is imported by the functions that need it and not before.
"""
import collections
import functools
import io
import itertools
import logging
import os
import re
import warnings
from contextlib import contextmanager
from pathlib import Path

from tinyattn.errors import InputError

KINDS = ("svg", "pdf", "png")
# Okabe and Ito's colours, which colour-blind readers tell apart; mark or hatch n goes with colour n, for print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX"
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
ABOVE, BELOW = COLOURS[1], COLOURS[0]  # in every picture orange is above 0 and blue below
# fonts for signs that DejaVu, which comes with matplotlib, has not: Chinese, Japanese, Korean, pictures
_MORE_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Microsoft YaHei",
               "SimHei", "PingFang SC", "Hiragino Sans", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Noto Emoji",
               "Segoe UI Emoji")
_outputs = itertools.count()  # pictures that notebooks have shown
# a file says nothing about when it was made, so the same picture is the same file
_METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def figure(width, height):
    """An empty Figure of width x height inches that belongs to no window. InputError without matplotlib."""
    try:
        with quiet():
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
    except ImportError:
        raise InputError("this picture needs matplotlib: pip install tinyattn[plot]") from None
    fig = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(fig)
    fig._repr_svg_ = functools.partial(_svg_of, fig)  # what a notebook shows
    fig._repr_png_ = functools.partial(save_bytes, fig, "png")  # and where it shows no SVG, as in a PDF made of it
    return fig


@functools.cache
def signed_colours():
    """The colours of numbers of both signs: blue below 0, white, orange above; all light enough for black letters."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb
    ends = [[1 + (c - 1) * 0.7 for c in to_rgb(colour)] for colour in (BELOW, ABOVE)]
    return LinearSegmentedColormap.from_list("below and above 0", [ends[0], (1, 1, 1), ends[1]])


def no_path(who, title, path):
    """InputError for a file name that stands where the title does, and so would be written nowhere."""
    if path is None and isinstance(title, str) and Path(title).suffix[1:].lower() in KINDS and "\n" not in title:
        raise InputError(f"{who}: got {title!r} as the title, and no file to write; for a file say path={title!r}")


def shown(svg):
    """An SVG file's text for the output of a notebook's cell: its ids are those of no other output, also if the same
    picture is shown again. A saved file keeps its own."""
    from .page import inline
    return inline(svg, f"{next(_outputs)} {svg}")  # with the text: a kernel that is started again counts from 0 again


def _svg_of(fig):
    return shown(save_bytes(fig, "svg").decode("utf-8"))


def numbers(who, given):
    """A Tensor, array or nested list as an array. InputError, that begins with `who`, for lists of unequal lengths and
    for finite numbers beyond 1e30, of which there are no sums or squares to be drawn."""
    import numpy as np
    try:
        array = np.asarray(given.numpy() if hasattr(given, "numpy") else given)
    except ValueError:
        raise InputError(f"{who}: expected an array of numbers, got lists of unequal lengths") from None
    if array.dtype.kind == "f" and array.size:
        largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))
        if largest > 1e30:
            raise InputError(f"{who}: expected numbers up to 1e30, got {largest:.3g}")
    return array


def kind_of(path):
    """The suffix of a picture's file name, checked: "svg", "pdf" or "png"."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"picture: expected a file name, got {path!r}")
    kind = Path(path).suffix[1:].lower()
    if kind not in KINDS:
        raise InputError(f"picture: expected a file name that ends in .svg, .pdf or .png, got {Path(path).name!r}")
    return kind


def save(fig, path):
    """Write `fig` to `path`, by its suffix, whole or not at all."""
    from .page import write
    if path is not None:
        write(path, save_bytes(fig, kind_of(path)), "picture")


def save_bytes(fig, kind, tight=True):
    """The file of a Figure; `tight` fits the page to what is drawn, so that nothing is cut."""
    import matplotlib
    out = io.BytesIO()
    # text stays text in PDF; in SVG only if no font here has all its signs: then the reader's fonts may
    settings = {"pdf.fonttype": 42, "svg.hashsalt": "tinyattn", "svg.fonttype": "path" if _all_known(fig) else "none"}
    with matplotlib.rc_context(settings), quiet():
        page = {"bbox_inches": "tight", "pad_inches": 0.1} if tight else {}
        fig.savefig(out, format=kind, dpi=160, metadata=_METADATA[kind], **page)
    return _once(out.getvalue()) if kind == "svg" else out.getvalue()


def _once(svg):
    """The bytes of an SVG with each id once: matplotlib names an image by its pixels, and two may be equal. What points
    to such an id finds the first of them."""
    count = collections.Counter()

    def named(found):
        count[found[2]] += 1
        more = b"" if count[found[2]] == 1 else f"-{count[found[2]]}".encode()
        return found[1] + found[2] + more + b'"'
    return re.sub(rb'(<[^<>]*\sid=")([^"<>]*)"', named, svg)


@contextmanager
def quiet():
    """No word on stderr about missing glyphs, fonts or folders: the picture is made all the same."""
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@functools.cache
def fonts():
    """DejaVu Sans, then the larger fonts that this machine has: each sign is taken from the first font that has it."""
    from matplotlib import font_manager
    with quiet():
        here = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in _MORE_FONTS if name in here]]


@functools.cache
def _known_signs():
    from matplotlib import font_manager, ft2font
    signs = set()
    for name in fonts():
        with quiet():
            signs.update(ft2font.FT2Font(font_manager.findfont(name)).get_charmap())
    return signs


def _all_known(fig):
    from matplotlib.text import Text
    return all(ord(sign) in _known_signs() or sign == "\n" for text in fig.findobj(Text) for sign in text.get_text())


def literally(texts):
    """Switch mathematics off in texts, so that `$` and `_` are themselves, and let them use every font there is."""
    for text in texts:
        text.set_parse_math(False)
        text.set_fontfamily(fonts())


def bare(axes):
    """Axes for curves: no frame above and on the right, a light grid for the eye."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11)


def plain_log(axes):
    """Plain numbers on a logarithmic y axis, also between the powers of ten where there are few of those."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: short(y)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def short(value):
    """A number of at least 0 in three digits: 0.0123, 4.56, 1.2e-7."""
    if value == 0 or 1e-3 <= value < 1e4:
        return f"{value:.3g}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace(".0e", "e")
