"""C++ programs made at random, with probe sites among branches, switches, labels as values, pointers to
functions, frames of changing size, long jumps and exceptions. The C part is plain C too."""
import random

HEAD = """\
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/sdt.h>
static long words[8];
static double real = 1.5;
static jmp_buf back;
static __attribute__((noinline)) long small(long x) { words[x & 7] ^= x; return x * 3 + words[1]; }
static __attribute__((noinline)) long leaf(long a, long b) {
  long v[4] = {a, b, a ^ b, 7};
  DTRACE_PROBE2(gen, leaf, a, v[b & 3]);
  v[a & 3] += b;
  return v[b & 3] + v[2];
}
static __attribute__((noinline)) long many(int n, ...) {
  __builtin_va_list list;
  long s = n;
  __builtin_va_start(list, n);
  for (int i = 0; i < n; ++i) s = s * 3 + __builtin_va_arg(list, long);
  DTRACE_PROBE1(gen, many, s);
  __builtin_va_end(list);
  return s;
}
static __attribute__((noinline)) void jumps(long x) {
  if ((x & 15) == 3) longjmp(back, 1 + (int)(x & 3));
  DTRACE_PROBE(gen, jumps);
}
#ifdef __cplusplus
struct Cleaner { long n; ~Cleaner() { words[2] += n; DTRACE_PROBE1(gen, cleaner, n); } };
static __attribute__((noinline)) long thrower(long x) {
  if ((x & 7) == 5) throw x;
  if ((x & 7) == 2) throw (int)x;
  DTRACE_PROBE1(gen, thrower, x);
  return x + 1;
}
#endif
"""


class Source:
    """A program with `functions` functions."""

    def __init__(self, seed, functions=8):
        self.random = random.Random(seed)
        self.functions, self.number, self.index = functions, 0, 0

    def pick(self, *choices):
        return self.random.choice(choices)

    def next(self):
        self.number += 1
        return self.number

    def probe(self):
        arguments = [self.pick("a", "b", "s", "s + a", "7", "v[a & 7]", "(char)b", "&v[1]", "words[3]")
                     for _ in range(self.random.choice((0, 0, 1, 2, 3, 6)))]
        text = ", ".join(["gen", f"p{self.random.randrange(30)}", *arguments])
        return f"DTRACE_PROBE{len(arguments) or ''}({text});"

    def simple(self):
        return self.pick("s = s * 5 + a;", "s ^= b;", "s += small(s);", "b += s & 3;", "v[a & 7] += s;",
                         "words[s & 7] += b;", "s -= v[b & 7];", "s += leaf(s, b);", "a ^= s >> 3;",
                         "s += many(3, a, b, s);", "s = s << 1 | (unsigned long)s >> 63;",
                         "real = real * 0.5 + (double)(s & 15);", "s += (long)(real * 4);",
                         "s += __builtin_popcountl(a);", "memset(v, s & 3, sizeof v);",
                         "s = a > b ? s + 1 : s - b;", "s += table[s & 3](a, b & 7);")

    def switch(self, depth):
        cases = self.random.randint(3, 11)
        lines = [f"switch ((unsigned long)s % {cases + self.random.randint(0, 3)}) {{"]
        for i in range(cases):
            lines.append(f"case {i}: {self.block(depth - 1, 2)} {self.pick('break;', 'break;', '')}")
        return "\n".join([*lines, "default: s += 13;", "}"])

    def labels(self, function):
        """A small interpreter; its table holds addresses, or their differences."""
        n, count = self.next(), self.random.randint(3, 6)
        names = [f"L{n}_{i}" for i in range(count)]
        loads = f"if (++steps{n} > {self.random.randint(4, 20)}) goto L{n}_end; "
        if self.random.random() < 0.5:
            table = f"static const int t{n}[] = {{{', '.join(f'(int)((char *)&&{x} - (char *)&&{names[0]})' for x in names)}}};"
            go = f"{loads}goto *((char *)&&{names[0]} + t{n}[(unsigned long)s % {count}]);"
        else:
            table = f"static void *const t{n}[] = {{{', '.join('&&' + x for x in names)}}};"
            go = f"{loads}goto *t{n}[(unsigned long)s % {count}];"
        body = "\n".join(f"{x}: s = s * 3 + {i}; {self.pick(self.probe(), self.simple())} {go}"
                         for i, x in enumerate(names))
        function.append(f"int steps{n} = 0; {table}")
        return f"{go}\n{body}\nL{n}_end: s += {n};"

    def block(self, depth, most=5):
        lines = []
        for _ in range(self.random.randint(1, most)):
            chance = self.random.random()
            if chance < 0.35:
                lines.append(self.probe())
            elif chance < 0.65 or depth == 0:
                lines.append(self.simple())
            elif chance < 0.8:
                condition = self.pick("s & 4", "a < b", "s == b", "v[a & 7] > s", "(char)s", "real > 3")
                other = self.pick("", f" else {{ {self.block(depth - 1, 2)} }}")
                lines.append(f"if ({condition}) {{ {self.block(depth - 1, 3)} }}{other}")
            elif chance < 0.9:
                i = f"i{self.next()}"
                lines.append(f"for (int {i} = 0; {i} < {self.random.randint(2, 5)}; ++{i}) {{\n"
                             f"{self.block(depth - 1, 3)}\n}}")
            else:
                lines.append(self.switch(depth))
        return "\n".join(lines)

    def body(self, head):
        chance = self.random.random()
        if chance < 0.2:
            return self.labels(head) + "\n" + self.block(1)
        if chance < 0.3:
            return f"if (setjmp(back) == 0) jumps(a + b); else {{ s += 99; {self.probe()} }}"
        if chance < 0.4:
            return (f"char *more = (char *)__builtin_alloca(16 + (a & 63)); memset(more, (int)b, 16);\n"
                    f"{self.block(2)}\ns += more[s & 15];")
        if chance < 0.6:
            return ("#ifdef __cplusplus\n"
                    f"try {{ Cleaner c = {{s}}; {self.probe()} s += thrower(s + a); {self.block(1, 3)} }}\n"
                    f"catch (long x) {{ {self.probe()} s ^= x; }} catch (int x) {{ s += x; {self.probe()} }}\n"
                    "#endif\n" + self.block(1))
        return self.block(2)

    def function(self, i):
        head = []
        body = self.body(head)
        end = self.pick("return s;", "return s + b;", "return leaf(s, b & 7);",
                        f"{self.probe()} return small(s);", f"{self.probe()} return s;")
        kind = self.pick("", "static ")
        volatile = self.pick("", "", "volatile ")
        return (f"__attribute__((noinline)) {kind}long f{i}(long a, long b) {{\n  {volatile}long s = a;\n"
                f"  long v[8] = {{1, 2, 3, a, b, 6, 7, 8}};\n  {' '.join(head)}\n{body}\n  {end}\n}}\n")

    def text(self):
        functions = "".join(self.function(i) for i in range(self.functions))
        early = "static long (*const table[4])(long, long) = {leaf, leaf, leaf, leaf};\n"
        calls = "\n".join(f"    s = s * 31 + f{i}(n, s & 15); printf(\"%lx\\n\", s);"
                          for i in range(self.functions))
        return (f"{HEAD}{early}{functions}int main(void) {{\n  long s = 1;\n"
                f"  for (long n = 0; n < 6; ++n) {{\n{calls}\n  }}\n"
                "  for (int i = 0; i < 8; ++i) s = s * 31 + words[i];\n"
                "  printf(\"%lx\\n\", s);\n  return 0;\n}\n")
