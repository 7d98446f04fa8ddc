"""One seed is one run, byte for byte: also in another process, where sets of names have another order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dipaco_swarm.testing.stories import tell

SEED = 114
SECONDS = 25.0
AGAIN = f"""
import gc, json, sys
from pathlib import Path
from dipaco_swarm.testing.stories import tell

gc.freeze()
told = tell({SEED}, Path(sys.argv[1]), seconds={SECONDS})
print(json.dumps([told.trace, told.virtual_seconds, told.commits]))
"""


@pytest.mark.timeout(500)  # 5 s of CPU, and the libraries once more; the machine may be busy
def test_a_seed_is_a_history_in_every_process(tmp_path: Path) -> None:
    told = tell(SEED, tmp_path, seconds=SECONDS)
    assert told.faults
    assert told.commits
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    again = subprocess.run(
        [sys.executable, "-c", AGAIN, str(tmp_path / "again")],
        env=environment, capture_output=True, text=True, timeout=400, check=True,
    )  # fmt: skip
    assert json.loads(again.stdout) == [told.trace, told.virtual_seconds, told.commits]
