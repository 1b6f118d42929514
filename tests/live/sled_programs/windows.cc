// Calls every function of windows.S, windows_goto.c and windows_end.S and prints what they give.
#include <cstdio>
#include <stdexcept>

extern "C" {
long table_one(long), table_whole(long), label_taken(long), symbol_in(long), symbol_entry(long);
long symbol_label(long), twins(long), endbr_after(long), endbr_inner(long), endbr_bare(long);
long block_long(long), block_short(long), prefix(long), prefix_in(long), repeated(long);
long repeated_only(long), counted(long), flags(long), tight(long), relative(long), calls(long);
long calls_short(long), pushes(long), lands(long), threaded(long), offsets(long), cases(long);
void two_padded(long), end_of_text();

long thrower(long n) {
  if (n % 3 == 0) throw std::runtime_error("three");
  return n * 2 + n % 5;
}
}

static long guarded(long n) {
  try {
    return lands(n);
  } catch (const std::exception& e) {
    return -e.what()[0];
  }
}

static long nothing(long n) {
  two_padded(n);
  end_of_text();
  return n;
}

using Function = long (*)(long);
#define NAMED(name) \
  { #name, name }
static const struct {
  const char* name;
  Function volatile function;
} kFunctions[] = {
    NAMED(table_one),    NAMED(table_whole),  NAMED(label_taken), NAMED(symbol_in),
    NAMED(symbol_entry), NAMED(symbol_label), NAMED(twins),       NAMED(endbr_after),
    NAMED(endbr_inner),  NAMED(endbr_bare),   NAMED(block_long),  NAMED(block_short),
    NAMED(prefix),       NAMED(prefix_in),    NAMED(repeated),    NAMED(repeated_only),
    NAMED(counted),      NAMED(flags),        NAMED(tight),       NAMED(relative),
    NAMED(calls),        NAMED(calls_short),  NAMED(pushes),      NAMED(guarded),
    NAMED(nothing),      NAMED(threaded),     NAMED(offsets),     NAMED(cases),
};

int main() {
  for (const auto& f : kFunctions) {
    std::printf("%s", f.name);
    for (long n = 0; n < 9; ++n) std::printf(" %ld", f.function(n));
    std::printf("\n");
  }
}
