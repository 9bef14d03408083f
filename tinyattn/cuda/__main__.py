"""`python -m tinyattn.cuda` lists the kernels of all ops and their lines of PTX."""
import sys

from . import ptx

try:
    print(ptx.ptx_report())
except RuntimeError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
