// planned_source() against apply(): every slice of the result, and what lies outside of it.

#include "libprobe/plan/planned_source.hpp"

#include <algorithm>

#include "catch.hpp"

namespace reprobe::test {
namespace {

Bytes counted(std::size_t size, unsigned first) {
  Bytes bytes;
  for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(first + i));
  return bytes;
}

// Each slice up to a few bytes past the end; nothing where apply() has no such bytes.
void check_all_slices(const Plan& plan, const ByteSource& input) {
  const auto output = apply(plan, input);
  REQUIRE(output);
  const auto source = planned_source(input, plan);
  REQUIRE(source->size() == output->size());
  for (std::size_t at = 0; at < output->size() + 3; ++at) {
    for (std::size_t size = 0; size < output->size() + 4 - at; ++size) {
      const auto slice = source->slice({at}, {size}, "test");
      const bool inside = at + size <= output->size();
      CAPTURE(at, size);
      REQUIRE(slice.has_value() == inside);
      if (!inside) continue;
      const auto expected = std::span(*output).subspan(at, size);
      REQUIRE(std::ranges::equal(*slice, expected));
    }
  }
  CHECK_FALSE(source->slice({1}, {~std::uint64_t{0}}, "test"));
}

}  // namespace

TEST_CASE("a planned file reads as the plan's output") {
  const auto input = memory_source(counted(24, 0));
  Plan plan;
  SECTION("without edits") {}
  SECTION("with edits in the middle and at both ends") {
    REQUIRE(plan.replace(*input, {0}, counted(1, 100), "first"));
    REQUIRE(plan.replace(*input, {20}, counted(4, 120), "last"));
    REQUIRE(plan.replace(*input, {7}, counted(3, 140), "middle"));
    REQUIRE(plan.replace(*input, {10}, counted(2, 160), "right behind it"));
  }
  SECTION("with bytes behind the end") {
    REQUIRE(plan.append(*input, counted(5, 200), Size{16}, "appended"));
  }
  SECTION("with both") {
    REQUIRE(plan.replace(*input, {22}, counted(2, 120), "last"));
    REQUIRE(plan.append(*input, counted(5, 200), Size{1}, "appended"));
  }
  check_all_slices(plan, *input);
}

TEST_CASE("views of a planned file stay valid while others are made") {
  const auto input = memory_source(counted(24, 0));
  Plan plan;
  REQUIRE(plan.replace(*input, {4}, counted(4, 100), "edit"));
  const auto source = planned_source(*input, plan);
  const auto first = source->slice({2}, {6}, "test");
  REQUIRE(first);
  const Bytes before(first->begin(), first->end());
  for (std::size_t at = 0; at < 8; ++at) REQUIRE(source->slice({at}, {16}, "test"));
  CHECK(std::ranges::equal(*first, before));
}

}  // namespace reprobe::test
