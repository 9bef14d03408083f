import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"

setup(
    name="tinyattn",
    version=re.search(r'__version__ = "(.+?)"', (HERE / "tinyattn" / "__init__.py").read_text(encoding="utf-8"))[1],
    description="Attention and back-propagation from the inside: a small, readable engine with Numba kernels",
    long_description=README.read_text(encoding="utf-8") if README.is_file() else "",
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["tinyattn", "tinyattn.*", "viz", "viz.*"]),
    python_requires=">=3.11",
    install_requires=["numpy>=2.0", "numba>=0.61", "click>=8.2", "graphviz>=0.20", "safetensors>=0.4.3", "tqdm>=4.60"],
    extras_require={
        "plot": ["matplotlib>=3.8", "graphviz-pure>=0.2.2", "latex2mathml>=3.77", "markdown-it-py>=3.0",
                 "pygments>=2.17"],
        "cuda": ["nvidia-nvvm==13.0.*", "nvidia-cuda-runtime==13.0.*", "nvidia-nvjitlink==13.0.*", "cuda-bindings==13.0.*"],
        "cluster": ["distributed>=2024.8"],
        "compare": ["scipy>=1.11"],
        "dev": ["pytest>=8", "ruff>=0.9", "hypothesis>=6.100", "sacrebleu>=2.4", "polib>=1.2", "distributed>=2024.8",
                "scipy>=1.11", "playwright>=1.49", "nbclient>=0.10", "ipykernel>=6.29"],
        "peers": ["torch==2.13.0", "jax>=0.5", "tinygrad>=0.11", "autograd>=1.7"],
    },
    entry_points={"console_scripts": ["tinyattn=tinyattn.cli:main"]},
)
