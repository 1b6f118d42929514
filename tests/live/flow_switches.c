/* Functions whose control flow flow_test.py compares with what the compiler wrote. */
extern int g(int);
extern void h(int);
extern void die(void) __attribute__((cold, noreturn));
extern int a[];
#define KEPT __attribute__((noinline, used))

KEPT int dense(int x) {
  switch (x) {
    case 0: return g(1);
    case 1: return g(7) + 1;
    case 2: h(3); return 5;
    case 3: return g(x) * 3;
    case 4: h(9); /* fall through */
    case 5: return g(2);
    case 6: h(1); h(2); return 0;
    case 7: return g(77);
    default: return -1;
  }
}

KEPT int bytes(unsigned char c) {
  switch (c) {
    case 'a': return g(1);
    case 'b': return g(7) + 1;
    case 'c': h(3); return 5;
    case 'd': return g(c) * 3;
    case 'e': h(9); /* fall through */
    case 'f': return g(2);
    case 'g': h(1); h(2); return 0;
    case 'x': return g(77);
    default: h(c); return -1;
  }
}

KEPT int wide(long v) {
  switch (v) {
    case 1000: return g(1);
    case 1001: return g(7) + 1;
    case 1002: h(3); return 5;
    case 1003: return g(3) * 3;
    case 1005: h(9); /* fall through */
    case 1006: return g(2);
    case 1010: h(1); h(2); return 0;
    default: return -1;
  }
}

KEPT int loop(const unsigned char* p) {
  int r = 0;
  for (;;) {
    switch (*p++) {
      case 0: return r;
      case 1: r += g(r); break;
      case 2: h(r); break;
      case 3: r = g(2) * r; break;
      case 4: h(7); r++; break;
      case 5: r = -g(r); break;
      case 6: r ^= g(5); break;
      case 7: h(r); h(1); break;
      case 8: p += 2; break;
      default: r = g(0);
    }
    a[r & 7] = r;
  }
}

KEPT int masked(unsigned x) {
  switch (x & 7) {
    case 0: return g(1);
    case 1: return g(7) + 1;
    case 2: h(3); return 5;
    case 3: return g((int)x) * 3;
    case 4: h(9); return 8;
    case 5: return g(2);
    case 6: h(1); h(2); return 0;
    case 7: return g(77);
  }
  return 3;
}

KEPT int unbounded(unsigned x) {
  switch (x) {
    case 0: return g(1);
    case 1: return g(7) + 1;
    case 2: h(3); return 5;
    case 3: return g((int)x) * 3;
    case 4: h(9); return 8;
    case 5: return g(2);
    case 6: h(1); h(2); return 0;
    case 7: return g(77);
    default: __builtin_unreachable();
  }
}

KEPT int two(int x, int y) {
  int r = 0;
  switch (x) {
    case 0: r = g(1); break;
    case 1: r = g(7) + 1; break;
    case 2: h(3); r = 5; break;
    case 3: r = g(x) * 3; break;
    case 4: h(9); break;
    case 5: r = g(2); break;
    case 6: h(1); h(2); break;
  }
  switch (y) {
    case 10: r += g(1); break;
    case 11: r ^= g(7) + 1; break;
    case 12: h(r); r = 5; break;
    case 13: r = g(x) * 3; break;
    case 14: h(9); break;
    case 15: r = g(2); break;
    case 16: h(1); h(2); break;
    default: return r;
  }
  return r + g(r);
}

KEPT int cold(int x) {
  switch (x) {
    case 0: return g(1);
    case 1: __builtin_trap();
    case 2: h(3); return 5;
    case 3: return g(x) * 3;
    case 4: h(9); __builtin_unreachable();
    case 5: return g(2);
    case 6: die();
    case 7: return g(77);
    case 8: h(2); h(4); die();
    default: return -1;
  }
}

KEPT int gotos(const unsigned char* p) {
  static const void* const t[] = {&&A, &&B, &&C, &&D};
  int r = 0;
  goto *t[*p++ & 3];
A: r += g(r); goto *t[*p++ & 3];
B: h(r); goto *t[*p++ & 3];
C: r = g(r); if (r > 100) return r; goto *t[*p++ & 3];
D: return r;
}

KEPT int differences(const unsigned char* p) {
  static const int t[] = {&&A - &&A, &&B - &&A, &&C - &&A, &&D - &&A};
  int r = 0;
  goto *(&&A + t[*p++ & 3]);
A: r += g(r); goto *(&&A + t[*p++ & 3]);
B: h(r); goto *(&&A + t[*p++ & 3]);
C: r = g(r); if (r > 100) return r; goto *(&&A + t[*p++ & 3]);
D: return r;
}

KEPT int local_labels(int x) {
  void* t[] = {&&A, &&B, &&C};
  int r = x;
again:
  if (x > 5) return r;
  goto *t[x % 3];
A: r += g(r); x++; goto again;
B: h(r); x += 2; goto again;
C: x += g(3); goto again;
}

/* Sums that are kept in memory: the one thing here that is not understood. */
KEPT int stored(const unsigned char* p) {
  static const int t[] = {&&A - &&A, &&B - &&A, &&C - &&A};
  void* kept[4];
  int r = 0;
  for (int i = 0; i < 3; i++) kept[i] = &&A + t[i];
  goto *kept[*p++ % 3];
A: r += g(r); goto *kept[*p++ % 3];
B: h(r); goto *kept[*p++ % 3];
C: return r;
}

struct object { int (**methods)(struct object*, int); };
KEPT int method(struct object* v, int x) {
  h(x);
  if (x > 3) return v->methods[3](v, x + 1);
  return v->methods[2](v, x);
}

KEPT int argument(int (*f)(int), int x) {
  h(x);
  return f(x + 1);
}
