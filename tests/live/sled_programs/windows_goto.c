/* Computed gotos around probe sites: labels whose addresses stand in data, before, behind and
 * between sites. Prints nothing; deterministic. */
#include <sys/sdt.h>

/* Threaded code: every label's address is taken, the sites stand around the labels. */
long threaded(long n) {
  static void* const labels[] = {&&add, &&twice, &&less, &&out};
  long value = n;
  long step = 0;
  goto* labels[n & 3];
add:
  value += 3;
  DTRACE_PROBE1(window, threaded_add, value);
twice:
  DTRACE_PROBE1(window, threaded_twice, value);
  value *= 2;
  if (++step < 4) goto* labels[(n + step) & 3];
less:
  DTRACE_PROBE(window, threaded_less);
  value -= step;
out:
  DTRACE_PROBE(window, threaded_out);
  return value;
}

/* Differences of labels: GCC's manual, "Labels as Values". */
long offsets(long n) {
  static const int labels[] = {&&a - &&a, &&b - &&a, &&c - &&a, &&d - &&a};
  long value = n;
  goto*(&&a + labels[n & 3]);
a:
  DTRACE_PROBE(window, offsets_a);
b:
  DTRACE_PROBE(window, offsets_b);
  value += 5;
c:
  DTRACE_PROBE1(window, offsets_c, value);
  value ^= 3;
d:
  DTRACE_PROBE(window, offsets_d);
  return value;
}

/* A switch whose cases begin and end with sites. */
long cases(long n) {
  long value = 1;
  switch (n) {
    case 0:
      DTRACE_PROBE(window, cases_0);
      /* fall through */
    case 1:
      DTRACE_PROBE(window, cases_1);
      value += 2;
      /* fall through */
    case 2:
      DTRACE_PROBE1(window, cases_2, value);
      break;
    case 3:
      value = 9;
      DTRACE_PROBE1(window, cases_3, value);
      /* fall through */
    case 4:
      value += n;
      break;
    case 5:
      value *= 7;
      DTRACE_PROBE(window, cases_5);
      return value;
    default:
      DTRACE_PROBE1(window, cases_default, n);
  }
  return value + n;
}
