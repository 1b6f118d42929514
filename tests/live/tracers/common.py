"""What every module here needs: one way to run a command."""
import os
import subprocess

PROVIDER = "traced"
REFUSED = "refused"


def run(*command, timeout=120, **options):
    """A finished process; one that does not end in time has exit status 124."""
    environment = {**os.environ, "LC_ALL": "C", **options.pop("env", {})}
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              check=False, timeout=timeout, env=environment,
                              stdin=subprocess.DEVNULL, **options)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {timeout} s")
