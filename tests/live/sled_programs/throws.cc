// Exceptions thrown through functions with probes, with cleanups and handlers in them; a stack that
// is printed by backtrace() below the sites. Prints the same in every run of one build.
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sdt.h>

#include <stdexcept>
#include <string>

#define KEPT __attribute__((noinline, used))

static long released;
struct Guard {
  long value;
  explicit Guard(long v) : value(v) {}
  ~Guard() {
    DTRACE_PROBE1(work, release, value & 7);
    released += value;
  }
};

// The functions' names with offsets: places in the original, which a sled leaves alone.
extern "C" KEPT void frames(const char* why) {
  void* at[32];
  const int n = backtrace(at, 32);
  char** names = backtrace_symbols(at, n);
  for (int i = 0; names != nullptr && i < n; ++i) {
    const char* name = strchr(names[i], '(');
    const char* end = name ? strchr(name, ')') : nullptr;
    if (end && strncmp(name, "(+", 2) != 0) printf("%s %.*s\n", why, (int)(end - name), name + 1);
  }
  free(names);
}

extern "C" KEPT long thrower(long n) {
  DTRACE_PROBE1(work, throwing, n);
  if (n % 3 == 0) throw std::runtime_error("three");
  if (n % 5 == 0) throw static_cast<int>(n);
  if (n == 7) frames("seven");
  return n;
}

extern "C" KEPT long passes(long n) {
  Guard guard(n);
  DTRACE_PROBE1(work, passing, n);
  const long x = thrower(n);  // a site directly before a call
  DTRACE_PROBE2(work, passed, n, x);
  return x + guard.value;
}

extern "C" KEPT long catches(long n) {
  const std::string text(static_cast<std::size_t>(n % 40), 'x');
  try {
    Guard guard(n * 2);
    DTRACE_PROBE1(work, trying, n);
    return passes(n) + static_cast<long>(text.size());
  } catch (const std::runtime_error& e) {
    DTRACE_PROBE1(work, caught, n);
    return static_cast<long>(strlen(e.what()));
  } catch (int value) {
    DTRACE_PROBE2(work, caught, n, value);
    try {
      thrower(3);
    } catch (...) {
      DTRACE_PROBE1(work, inner, value);
      released -= 1;
    }
    return value;
  }
}

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? atol(argv[1]) : 50;
  long total = 0;
  for (long i = 1; i <= rounds; ++i) total = total * 3 + catches(i);
  printf("total %lx released %ld\n", total, released);
  return 0;
}
