"""C programs made at random whose functions check counters in many ways. Each reads the counters'
values from the command line where REFERENCE is defined, and has probes with counters elsewhere; both
print the same where the counters have the same values."""
import random

COUNTERS = 5
HEAD = """\
#include <stdio.h>
#include <stdlib.h>
#ifdef REFERENCE
#define COUNTER(k) unsigned short rnd_p##k##_semaphore
#define PROBE(k, a, b)
#else
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#define COUNTER(k) EXPORT unsigned short rnd_p##k##_semaphore \\
  __attribute__((section(".probes")))
#define PROBE(k, a, b) DTRACE_PROBE2(rnd, p##k, a, b)
#endif
#ifndef EXPORT
#define EXPORT __attribute__((visibility("hidden")))
#endif
#define C(k) rnd_p##k##_semaphore
long hits[16], words[8];
unsigned short shorts[8];
__attribute__((noinline)) static void quiet(void) { hits[15]++; __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) static long small(long x) { hits[14]++; return x * 3 + hits[15]; }
__attribute__((noinline)) long global_one(long x, long y) { words[x & 7] += y; return x ^ words[y & 7]; }
__attribute__((noinline)) static int reads(const unsigned short *p) { hits[13]++; return *p; }
__attribute__((noinline)) static void six(long a, long b, long c, long d, long e, long f) {
  words[1] += a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6;
}
"""


class Source:
    """A program with `functions` functions and `counters` counters."""

    def __init__(self, seed, functions=6, counters=COUNTERS):
        self.random = random.Random(seed)
        self.functions, self.counters = functions, counters
        self.sited = set()  # counters that have a probe so far
        self.loops = 0

    def pick(self, *choices):
        return self.random.choice(choices)

    def probe(self, k):
        self.sited.add(k)
        return f"hits[{k}]++; PROBE({k}, s, {self.pick('a', 'b', 'a + b', '1')});"

    def simple(self):
        return self.pick("s = s * 5 + a;", "s ^= b;", "s += global_one(s, a);", "s += small(s);",
                         "quiet();", "quiet();", "b += s & 3;", "v[a & 3] += s;", "words[s & 7] += b;",
                         "six(a, b, s, a + 1, b + 1, s + 1);", "s -= v[b & 3];")

    def check(self):
        """A statement that looks at one or two counters."""
        k, j = self.random.randrange(self.counters), self.random.randrange(self.counters)
        probe = self.probe(k) if self.random.random() < 0.6 or k not in self.sited else "s += 11;"
        return self.pick(
            *[f"if (__builtin_expect(C({k}), 0)) {{ {probe} }}"] * 5,
            *[f"if (C({k})) {{ {probe} {self.simple()} }}"] * 4,
            f"if (C({k})) {{ {probe} }} else {{ {self.simple()} }}",
            f"s += C({k});", f"s += C({k}) << 3;", f"b += C({k}) != 0;", f"s -= !C({k});",
            f"if (C({k}) == 1) {{ {probe} }}", f"if (C({k}) != 1) s ^= 5;",
            f"if (C({k}) & 1) {{ {probe} }}", f"if (C({k}) > 0 && s > b) {{ {probe} }}",
            f"if (s > b && C({k})) {{ {probe} }}", f"if (a < b || C({k})) s += 2;",
            f"{{ unsigned m = (a > 3 || C({k})) ? 255 : 0; s += m & 129; }}",
            f"s = C({k}) ? s * 3 : s + b;", f"s += (unsigned char)C({k}) * 5;",
            f"if (C({k}) | C({j})) {{ {probe} }}", f"if (C({k}) & C({j})) s += 9;",
            f"if (C({k}) || C({j})) {{ {probe} }}", f"if (C({k}) > C({j})) s += 7;",
            f"switch (C({k})) {{ case 0: s++; break; case 1: {probe} break; case 2: s += 99; break; "
            f"default: s += 1000; }}",
            f"shorts[a & 7] = C({k});", f"shorts[b & 7] += C({k}); s += shorts[a & 7];",
            f"v[b & 3] = C({k}) ^ 1;",
            *([f"s += reads(&C({k}));"] if self.random.random() < 0.15 else []))

    def block(self, depth):
        lines = []
        for _ in range(self.random.randint(1, 4)):
            chance = self.random.random()
            if chance < 0.5:
                lines.append(self.check())
            elif chance < 0.75 or depth == 0:
                lines.append(self.simple())
            elif chance < 0.9:
                self.loops += 1
                i = f"i{self.loops}"
                lines.append(f"for (int {i} = 0; {i} < {self.random.randint(2, 4)}; ++{i}) {{\n"
                             f"{self.block(depth - 1)}\n}}")
            else:
                lines.append(f"if (s & {self.pick(1, 4)}) {{\n{self.block(depth - 1)}\n}}")
            if self.random.random() < 0.06:
                lines.append("if (s == 12345) return b;")
        return "\n".join(lines)

    def function(self, i):
        body = self.block(2)
        array = "  long v[4] = {1, 2, 3, 4};" if "v[" in body else ""
        frame = self.pick("", "", "static ")
        end = self.pick("return s;", "return s + b;", "return global_one(s, b);", "return small(s);")
        return (f"__attribute__((noinline)) {frame}long f{i}(long a, long b) {{\n  long s = a;\n{array}\n"
                f"{body}\n  {end}\n}}\n")

    def text(self):
        functions = "".join(self.function(i) for i in range(self.functions))
        # A counter has a probe in any case.
        rest = " ".join(f"if (C({k})) {{ {self.probe(k)} }}" for k in range(self.counters)
                        if k not in self.sited)
        counters = "".join(f"COUNTER({k});\n" for k in range(self.counters))
        calls = " ".join(f"s = s * 31 + f{i}(n, s & 15);" for i in range(self.functions))
        values = " ".join(f"C({k}) = (unsigned short)atoi(argv[{k + 1}]);"
                          for k in range(self.counters))
        return f"""{HEAD}{counters}{functions}
__attribute__((noinline)) long last(long a, long b) {{ long s = a; {rest} return s + b; }}
int run(int argc, char **argv) {{
#ifdef REFERENCE
  if (argc < {self.counters + 1}) return 2;
  {values}
#else
  (void)argc; (void)argv;
#endif
  unsigned long s = 1;
  for (long n = 0; n < 6; ++n) {{ {calls} s += last(n, 1); }}
  for (int i = 0; i < 16; ++i) s = s * 31 + hits[i];
  for (int i = 0; i < 8; ++i) s = s * 31 + words[i] + shorts[i];
  printf("%lx", s);
  for (int i = 0; i < {self.counters}; ++i) printf(" %ld", hits[i]);
  printf("\\n");
  return 0;
}}
"""


MAIN = """
int run(int argc, char **argv);
int main(int argc, char **argv) { return run(argc, argv); }
"""
