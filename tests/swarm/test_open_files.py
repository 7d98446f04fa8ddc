"""A peer has as many files open as its system allows."""

import resource
import subprocess
import sys

SAY = "from dipaco_swarm.machine.open_files import allow_open_files; print(allow_open_files())"


def test_the_usual_limit_of_1024_is_raised_to_what_the_system_allows() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def allowed(hard: int) -> int:
        def lower() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))

        said = subprocess.run([sys.executable, "-c", SAY], preexec_fn=lower, capture_output=True, check=True)
        return int(said.stdout)

    assert allowed(2048) == 2048
    assert allowed(512) == 512
    assert allowed(most) == (1 << 16 if most == resource.RLIM_INFINITY else min(1 << 16, most))
