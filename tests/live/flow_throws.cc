// Landing pads of several forms, whose places the compiler's own labels tell.
#include <stdexcept>
#include <string>

extern int g(int);
struct Guard {
  ~Guard();
};

[[gnu::noinline, gnu::used]] int catches(int x) {
  try {
    return g(x);
  } catch (const std::runtime_error&) {
    return g(1);
  } catch (int n) {
    return n + g(2);
  }
}

[[gnu::noinline, gnu::used]] int cleans(int x) {
  Guard a;
  g(x);
  Guard b;
  const std::string text(static_cast<std::size_t>(g(3)), 'x');
  return g(static_cast<int>(text.size()));
}

[[gnu::noinline, gnu::used]] int rethrows(int x) {
  for (int i = 0; i < x; ++i) {
    try {
      if (g(i) == 7) throw std::runtime_error("seven");
      g(i + 1);
    } catch (...) {
      if (g(9) == 0) throw;
    }
  }
  return 0;
}

[[gnu::noinline, gnu::used]] int never(int x) noexcept { return g(x); }
