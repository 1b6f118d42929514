// build: g++ -O2 -pie -fPIE -fnon-call-exceptions
// build: clang++-14 -O2 -pie -fPIE -fnon-call-exceptions
// what: -fnon-call-exceptions: a load beside the probe faults, the signal handler throws, the same function catches
#include <csignal>
#include <cstdio>
#include <sys/sdt.h>
struct Fault { int n; };
static void h(int) { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGSEGV); sigprocmask(SIG_UNBLOCK, &s, nullptr); throw Fault{7}; }
struct D { int *n; ~D() { ++*n; } };
__attribute__((noinline)) long load(long *p, int *n) {
  try { D d{n}; DTRACE_PROBE1(c, load, p); long v = *p; DTRACE_PROBE1(c, loaded, v); return v; }
  catch (Fault &f) { return -f.n; }
}
int main() {
  struct sigaction a{}; a.sa_handler = h; a.sa_flags = SA_NODEFER; sigaction(SIGSEGV, &a, nullptr);
  long v = 5; int n = 0;
  std::printf("%ld %d\n", load(&v, &n), n); std::fflush(stdout);
  std::printf("%ld %d\n", load((long *)8, &n), n);
}
