"""What the live tests need of the machine."""
import os
import shutil
import sys

from common import run

TRACEFS = "/sys/kernel/tracing"


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)


def need_kernel():
    if os.uname().machine != "x86_64":
        skip("the programs are written for x86-64")
    if os.geteuid() != 0:
        skip("tracing needs root")
    if not os.path.exists("/sys/bus/event_source/devices/uprobe"):
        skip("this kernel has no uprobes")
    if not os.path.exists(TRACEFS + "/trace"):
        # A mount namespace of its own leaves the machine as it was.
        if os.environ.get("TRACER_TEST_NAMESPACE"):
            if run("mount", "-t", "tracefs", "none", TRACEFS).returncode:
                skip("no tracefs")
        elif run("unshare", "--mount", "true").returncode:
            skip("no tracefs, and no right to mount it")
        else:
            os.environ["TRACER_TEST_NAMESPACE"] = "1"
            os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])


def can_trace():
    """Where not, a test that does more says so and goes on."""
    if os.geteuid() == 0 and os.path.exists("/sys/bus/event_source/devices/uprobe"):
        need_kernel()
        return True
    print("NOTE: untraced only: no root or no uprobes")
    return False


def need_tools(programs):
    """scripts/packages brings all of them: what is missing is a failure."""
    missing = [p for p in programs if not shutil.which(p)]
    if missing:
        print(f"FAILED: missing, though scripts/packages names them: {', '.join(missing)}")
        sys.exit(1)
