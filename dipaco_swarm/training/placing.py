"""Where work is done for which nobody chose a device: what a bootstrap node reckons between two stages."""

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

log = logging.getLogger(__name__)

Result = TypeVar("Result")


def where_fast(work: Callable[[str], Result]) -> Result:
    """`work` on the GPU where there is one, else on the CPU; there too when a GPU, which a peer may use, has no room.

    `work`: gets what torch calls the device, and may be called anew after it has failed in the middle. What it leaves
    of the GPU's memory is given back. CUDA_VISIBLE_DEVICES says which GPU, and empty that there is none.
    """
    if torch.cuda.is_available():
        try:
            return work("cuda")
        except torch.cuda.OutOfMemoryError:
            log.warning("the GPU has too little memory left for the work between two stages; the CPU does it, slower")
        finally:
            torch.cuda.empty_cache()
    return work("cpu")
