#!/usr/bin/env python3
"""sled_real.py REPROBE ROOT: do shipped programs with sleds work?

ROOT holds unpacked Debian 12 packages (python3.11-minimal, php8.2-cli, libruby3.1,
openjdk-17-jre-headless, postgresql-15, libstdc++6). For each file: its program runs a workload
with exceptions on the original and on the sledded copy, untraced and with bpftrace counting all
probes of the file, and must print the same. Each probe that counts the same in two runs of the
original (timing decides of none of its hits) must count the same in the sledded run. Needs root,
bpftrace, and the installed interpreters. Writes one line a run; exits 1 on a failure.

Servers fork, and Linux 6.18 kills forked children at a nop5 site: postgres gets nop10 sleds only.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

KINDS = ("nop10", "nop5")

PYTHON = """
def deep(n):
    if n == 0: raise ValueError("deep")
    return deep(n - 1)
caught = 0
for i in range(300):
    try: deep(i % 20)
    except ValueError: caught += 1
import json, collections, threading
done = []
threads = [threading.Thread(target=lambda k=k: done.append(sum(range(k)))) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(caught, sorted(done), json.dumps({"a": [1, 2]}))
"""
RUBY = """
def deep(n) = n == 0 ? raise(ArgumentError, "deep") : deep(n - 1)
caught = 0
300.times { |i| begin; deep(i % 20); rescue ArgumentError; caught += 1; ensure; caught += 1; end }
r = catch(:done) { 10.times { |i| throw :done, i if i == 7 } }
a = (1..2000).map { |i| "s#{i}" * 2 }.select { |s| s.size > 5 }.map(&:to_sym).size
f = Fiber.new { 3.times { |i| Fiber.yield i }; 9 }
puts [caught, r, a, 4.times.map { f.resume }, Thread.new { 6 * 7 }.value].inspect
"""
PHP = """<?php
function deep($n) { if ($n == 0) throw new RuntimeException("deep"); return deep($n - 1); }
$caught = 0;
for ($i = 0; $i < 300; $i++) {
  try { deep($i % 20); } catch (RuntimeException $e) { $caught++; } finally { $caught++; }
}
try { intdiv(1, 0); } catch (DivisionByZeroError $e) { $caught += 1000; }
function gen() { foreach ([1, 2, 3] as $x) yield $x; }
echo $caught, array_sum(iterator_to_array(gen())), " ", @$undefined["x"], "\\n";
"""
JAVA = """
import java.util.*; import java.util.concurrent.*;
public class Work {
  static int deep(int n) { if (n == 0) throw new IllegalStateException("deep"); return deep(n - 1) + 1; }
  static int hash(Object o) { return o.hashCode(); }
  static long work(int s) {
    long x = s;
    for (int i = 0; i < 200000; i++) { x = x * 6364136223846793005L + i; if ((x & 1023) == 0) x ^= new Object[]{x}.length; }
    return x;
  }
  public static void main(String[] a) throws Exception {
    int caught = 0;
    for (int i = 0; i < 3000; i++) {
      try { deep(i % 30); } catch (IllegalStateException e) { caught++; }
      try { hash(i % 2 == 0 ? null : "a"); } catch (NullPointerException e) { caught++; }
      try { int[] q = new int[1]; q[i + 1] = 0; } catch (ArrayIndexOutOfBoundsException e) { caught++; }
    }
    if (a.length != 0) { System.out.println(caught + " " + work(7)); return; }
    ExecutorService p = Executors.newFixedThreadPool(4);
    List<Future<Long>> fs = new ArrayList<>();
    for (int i = 0; i < 16; i++) { final int s = i; fs.add(p.submit(() -> work(s))); }
    long sum = 0; for (var f : fs) sum += f.get();
    p.shutdown();
    Object lock = new Object(); int[] c = {0}; Thread[] t = new Thread[4];
    for (int i = 0; i < 4; i++) {
      t[i] = new Thread(() -> { for (int k = 0; k < 3000; k++) synchronized (lock) { c[0]++; } });
      t[i].start();
    }
    for (Thread x : t) x.join();
    try { deep(1000000); } catch (StackOverflowError e) { caught++; }
    List<byte[]> l = new ArrayList<>();
    for (int i = 0; i < 300; i++) { l.add(new byte[100000]); if (l.size() > 50) l.clear(); }
    System.gc();
    System.out.println(caught + " " + sum + " " + c[0]);
  }
}
"""
SQL = """
create table t(a int primary key, b text);
insert into t select i, md5(i::text) from generate_series(1, 3000) i;
do $$ begin for i in 1..50 loop begin insert into t values (i, 'x');
exception when unique_violation then null; end; end loop; end $$;
select count(*), sum(a) from t where b like 'a%';
select 1/0;
begin; update t set b = 'z' where a < 100; rollback;
select sum(length(b)) from t;
checkpoint;
"""
SINGLE_SQL = """create table t(a int primary key, b text);

insert into t select i, md5(i::text) from generate_series(1, 3000) i;

do $$ begin for i in 1..50 loop begin insert into t values (i, 'x');
exception when unique_violation then null; end; end loop; end $$;

select count(*), sum(a) from t where b like 'a%';

select 1/0;

update t set b = 'z' where a < 100;

create index on t(b);

select sum(length(b)) from t;

vacuum t;

checkpoint;

"""
CXX = """
#include <cstdio>
#include <stdexcept>
long f(long n) { if (n % 3 == 0) throw std::runtime_error("x"); return n; }
long g(long n) { try { return f(n); } catch (...) { if (n % 2) throw; return -1; } }
int main() {
  long total = 0;
  for (long i = 0; i < 3000; ++i) try { total += g(i); } catch (const std::exception& e) { total += e.what()[0]; }
  std::printf("%ld\\n", total);
}
"""


def run(command, env=None, timeout=240):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                          timeout=timeout, env={**os.environ, **(env or {})},
                          stdin=subprocess.DEVNULL)


def sites(file):
    said = run(["readelf", "-n", "-W", file]).stdout
    return len(re.findall(r"Provider: ", said))


def traced(file, command, env, folder):
    """What the command printed and {probe: hits} of all probes of the file."""
    script = os.path.join(folder, "command.sh")
    output = os.path.join(folder, "output")
    with open(script, "w", encoding="utf-8") as out:
        out.write("".join(f"export {k}='{v}'\n" for k, v in env.items()))
        out.write(" ".join(f"'{part}'" for part in command) + f" > {output} 2>&1\n")
    program = f'BEGIN {{ system("sh {script}"); exit(); }} usdt:{file}:* {{ @[probe] = count(); }}'
    said = run(["bpftrace", "--unsafe", "-e", program],
               {"BPFTRACE_MAX_PROBES": "2000", "BPFTRACE_MAX_BPF_PROGS": "2000"})
    hits = {m[1]: int(m[2])
            for m in re.finditer(r"^@\[usdt:[^\]]*?:(\w+:\w+)\]: (\d+)$", said.stdout, re.M)}
    attached = re.search(r"Attaching (\d+) probes", said.stdout)
    if not os.path.exists(output):
        raise SystemExit(f"FAILED: bpftrace: {said.stdout[-300:]}{said.stderr[-900:]}")
    with open(output, encoding="utf-8", errors="replace") as text:
        return text.read(), hits, int(attached[1]) - 1 if attached else said.stderr[-300:]


class Bench:
    def __init__(self, reprobe, root, folder):
        self.reprobe, self.root, self.folder = reprobe, root, folder
        self.failed = False

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def report(self, good, what, detail=""):
        self.failed |= not good
        print(f"{'ok' if good else 'FAILED'}: {what} {detail}", flush=True)

    def baseline(self, name, original, place, command, env):
        """What the original prints and hits, in an untraced run and two traced ones."""
        shutil.copy2(original, place)
        plain = run(command, env)
        said = plain.stdout + plain.stderr
        out, hits, attached = traced(place, command, env, self.folder)
        again = traced(place, command, env, self.folder)[1]
        same = {probe for probe in hits if hits[probe] == again.get(probe)}
        self.report(plain.returncode == 0 and out == said, f"{name} original",
                    f"{sum(hits.values())} hits of {len(hits)} probes, {len(same)} of them "
                    f"as often in another run, {attached} attached; "
                    f"{said.strip().splitlines()[-1][:60] if said.strip() else ''}")
        return {"exit": plain.returncode, "said": said, "hits": hits, "attached": attached,
                "same": same, "always": hits.keys() & again.keys()}

    def compare(self, name, original, place, command, env, kinds=KINDS, determined=True):
        """`place`: where the file stands while it is the one that the command uses. `determined`:
        the workload determines hits; otherwise every probe must be hit that two runs of the
        original hit."""
        base = self.baseline(name, original, place, command, env)
        for kind in kinds:
            made = run([self.reprobe, "sled", f"--kind={kind}", original, "-o", place])
            if made.returncode:
                self.report(False, f"{name} {kind}: sled", made.stderr)
                return
            plain = run(command, env)
            said = plain.stdout + plain.stderr
            out, hits, attached = traced(place, command, env, self.folder)
            self.report(said == base["said"], f"{name} {kind}: untraced prints the same",
                        "" if said == base["said"] else said[-300:])
            self.report(out == base["said"], f"{name} {kind}: traced prints the same",
                        "" if out == base["said"] else out[-300:])
            differ = {k: (base["hits"].get(k), hits.get(k)) for k in {*hits, *base["hits"]}
                      if hits.get(k) != base["hits"].get(k)}
            wrong = base["same"] & differ.keys() if determined else base["always"] - hits.keys()
            self.report(not wrong and attached == base["attached"],
                        f"{name} {kind}: {'hits' if determined else 'probes hit'}",
                        f"{sum(hits.values())} of {len(hits)} probes, {attached} attached"
                        + (f"; wrong: {sorted(wrong)}" if wrong else "")
                        + (f"; differ: {differ}" if differ else ""))

    def python(self):
        script = self.write("work.py", PYTHON)
        place = os.path.join(self.folder, "python3.11")
        self.compare("python3.11", self.path("usr/bin/python3.11"), place,
                     [place, "-S", script], {"PYTHONHOME": "/usr", "PYTHONDONTWRITEBYTECODE": "1",
                                             "PYTHONHASHSEED": "0"})

    def ruby(self):
        script = self.write("work.rb", RUBY)
        lib = os.path.join(self.folder, "ruby-lib")
        os.mkdir(lib)
        self.compare("libruby", self.path("usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2"),
                     os.path.join(lib, "libruby-3.1.so.3.1"),
                     ["/usr/bin/ruby3.1", "--disable-gems", script], {"LD_LIBRARY_PATH": lib})

    def php(self):
        script = self.write("work.php", PHP)
        place = os.path.join(self.folder, "php")
        self.compare("php8.2", self.path("usr/bin/php8.2"), place, [place, "-n", script],
                     {"USE_ZEND_DTRACE": "1"})

    def cxx(self):
        source = self.write("work.cc", CXX)
        program = os.path.join(self.folder, "cxx")
        run(["g++", "-O2", source, "-o", program])
        lib = os.path.join(self.folder, "cxx-lib")
        os.mkdir(lib)
        # bpftrace knows no "+" in the name of a file.
        os.symlink("libstdcxx.so", os.path.join(lib, "libstdc++.so.6"))
        self.compare("libstdc++", self.path("usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"),
                     os.path.join(lib, "libstdcxx.so"), [program], {"LD_LIBRARY_PATH": lib})

    def java(self):
        source = self.write("Work.java", JAVA)
        jdk = os.path.join(self.folder, "jdk")
        shutil.copytree("/usr/lib/jvm/java-17-openjdk-amd64", jdk, symlinks=True,
                        ignore=shutil.ignore_patterns("src.zip", "docs", "ct.sym"))
        run(["/usr/lib/jvm/java-17-openjdk-amd64/bin/javac", "-d", self.folder, source])
        original = self.path("usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so")
        place = os.path.join(jdk, "lib/server/libjvm.so")
        java = [os.path.join(jdk, "bin/java"), "-XX:+ExtendedDTraceProbes", "-XX:+UseSerialGC",
                "-cp", self.folder]
        # Interpreted, one thread: neither compilers nor other threads take part.
        self.compare("libjvm -Xint", original, place,
                     [*java, "-Xint", "-Xshare:off", "-XX:-UsePerfData", "Work", "alone"], {},
                     ("nop10",))
        self.compare("libjvm", original, place, [*java, "Work"], {}, determined=False)

    def postgres(self):
        tree = os.path.join(self.folder, "pg")
        here = os.path.join(tree, "usr/lib/postgresql/15")
        os.makedirs(os.path.join(tree, "usr/share"))
        shutil.copytree(self.path("usr/lib/postgresql/15"), here, symlinks=True)
        os.symlink(self.path("usr/share/postgresql"), os.path.join(tree, "usr/share/postgresql"))
        sql = self.write("work.sql", SQL)
        single = self.write("single.sql", SINGLE_SQL)
        os.chmod(self.folder, 0o755)
        data = os.path.join(self.folder, "data")
        b, sock = here + "/bin", data + ".sock"
        # $AS: what makes it another user than root, where that is not the whole script's.
        as_nobody = "${AS-setpriv --reuid nobody --regid nogroup --clear-groups}"
        original = self.path("usr/lib/postgresql/15/bin/postgres")
        # One process, the same files each time.
        made = run(["sh", "-c", f"mkdir {data}.first && chown nobody {data}.first && cd / && "
                    f"{as_nobody} {b}/initdb -D {data}.first -U me -N --no-locale"])
        if made.returncode:
            self.report(False, "postgres --single: initdb", made.stderr[-300:])
            return
        script = self.write("single.sh", f"""rm -rf {data}; cp -a {data}.first {data}; cd /
{as_nobody} {b}/postgres --single -F -j -c log_checkpoints=off -c log_line_prefix= \\
  -D {data} postgres < {single} 2>&1
""")
        self.compare("postgres --single", original, b + "/postgres", ["sh", script], {},
                     ("nop10",))
        script = self.write("pg.sh", f"""set -e
rm -rf {data} {sock}; mkdir {data} {sock}; chown nobody {data} {sock}; cd {sock}
as() {{ {as_nobody} "$@"; }}
as {b}/initdb -D {data} -U me -N --no-locale > {sock}/init 2>&1
as {b}/pg_ctl -D {data} -w -o "-k {sock} -h '' -F -c autovacuum=off" -l {sock}/log start > /dev/null
as /usr/lib/postgresql/15/bin/psql -X -q -A -t -h {sock} -U me -d postgres -f {sql} 2>&1 || true
as {b}/pgbench -h {sock} -U me -i -q postgres > /dev/null 2>&1
as {b}/pgbench -h {sock} -U me -c 2 -j 2 -t 100 postgres 2>&1 | grep processed
as {b}/pg_ctl -D {data} -w stop -m fast > /dev/null
""")
        self.compare("postgres", original, b + "/postgres", ["sh", script], {}, ("nop10",),
                     determined=False)


def main(kind, usage):
    if len(sys.argv) < 3:
        print(usage, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="reprobe-real-") as folder:
        bench = kind(os.path.abspath(sys.argv[1]), sys.argv[2], folder)
        for name in sys.argv[3:] or ("cxx", "python", "php", "ruby", "java", "postgres"):
            getattr(bench, name)()
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main(Bench, __doc__))
