// Versions of Linux as uname -r and distributions write them.
#include "libprobe/audit/kernels.hpp"

#include <string>

#include "catch.hpp"

namespace reprobe::test {

TEST_CASE("versions of kernels") {
  const auto version = [](std::string_view text) {
    const auto parsed = parse_kernel(text);
    return parsed ? std::to_string(parsed->major) + "." + std::to_string(parsed->minor) : "none";
  };
  CHECK(version("6.18") == "6.18");
  CHECK(version("6.1.0-13-amd64") == "6.1");
  CHECK(version("7.2-rc1") == "7.2");
  CHECK(version("5.15.0+") == "5.15");
  for (const char* none : {"", "6", "6.", ".1", "six.one", "6.x", "v6.18", "99999999999.1"}) {
    CAPTURE(none);
    CHECK(version(none) == "none");
  }
}

TEST_CASE("which kernels make calls of five-byte nops") {
  CHECK(make_calls_of_nop5({}));
  CHECK_FALSE(make_calls_of_nop5(KernelVersion{6, 16}));
  CHECK(make_calls_of_nop5(KernelVersion{6, 17}));
  CHECK(make_calls_of_nop5(KernelVersion{7, 1}));
  CHECK_FALSE(make_calls_of_nop5(KernelVersion{7, 2}));
  CHECK(refuse_nop10(KernelVersion{7, 1}));
  CHECK_FALSE(refuse_nop10(KernelVersion{7, 2}));
  CHECK(lack_cookies(KernelVersion{5, 14}));
  CHECK_FALSE(lack_cookies(KernelVersion{5, 15}));
}

}  // namespace reprobe::test
