"""Counts what held and prints what did not."""
from collections import Counter

MOST = 1500  # characters of a value that are printed


class Checks:
    def __init__(self):
        self.failures = self.passed = 0
        self.name = ""  # of what is being checked, printed before each failure

    def equal(self, what, got, expected):
        if got == expected:
            self.passed += 1
            return True
        self.failures += 1
        if isinstance(got, Counter) and isinstance(expected, Counter):
            got, expected = got - expected, expected - got
        about = f"{self.name}: {what}" if self.name else what
        print(f"FAILED: {about}:\n  expected {str(expected)[-MOST:]}\n  found    {str(got)[-MOST:]}")
        return False

    def true(self, what, good, said=""):
        return self.equal(what, (bool(good), "" if good else said), (True, ""))

    def exit_code(self):
        """Says how many; what main() returns."""
        print(f"{self.passed} checks passed, {self.failures} failed")
        return 1 if self.failures else 0
