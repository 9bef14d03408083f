"""What all pictures of matplotlib share: figures without a window or global state, fonts, files.

matplotlib is the extra `tinyattn[plot]` and is imported by the functions that need it.
"""
import io
import logging
import warnings
from pathlib import Path

from tinyattn.errors import InputError

KINDS = ("svg", "pdf", "png")
# Okabe and Ito's colours, which colour-blind readers tell apart; used in this order, with another mark and dash for each
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")
# fonts that have what DejaVu has not (Chinese, Japanese, Korean, pictures), in case one of them is installed
_MORE_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei",
               "PingFang SC", "Hiragino Sans", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Noto Emoji", "Segoe UI Emoji")
