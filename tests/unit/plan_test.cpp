// Plans: what is recorded, what is refused, and that applying changes the stated bytes alone. The
// expected bytes are written out by hand.
#include "libprobe/plan/plan.hpp"

#include <memory>
#include <string>
#include <string_view>

#include "catch.hpp"

using namespace reprobe;

namespace {

Bytes bytes_of(std::string_view text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

std::string text_of(const Bytes& bytes) { return std::string(as_text(bytes)); }

std::shared_ptr<const ByteSource> source_of(std::string_view text) {
  return memory_source(bytes_of(text));
}

}  // namespace

TEST_CASE("a plan without edits is empty and applies to the input itself", "[plan]") {
  const auto input = source_of("0123456789");
  const Plan plan;
  CHECK(plan.empty());
  const auto output = apply(plan, *input);
  REQUIRE(output);
  CHECK(text_of(*output) == "0123456789");
}

TEST_CASE("an edit records what it replaces and is trimmed at both ends", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  REQUIRE(plan.replace(*input, FileOffset{2}, bytes_of("23xx6y89"), "because"));
  REQUIRE(plan.edits().size() == 1);
  const Edit& edit = plan.edits().front();
  CHECK(edit.offset == FileOffset{4});
  CHECK(text_of(edit.before) == "4567");
  CHECK(text_of(edit.after) == "xx6y");
  CHECK(edit.why == "because");
  CHECK_FALSE(plan.empty());
  CHECK(text_of(*apply(plan, *input)) == "0123xx6y89");
}

TEST_CASE("an edit that restates the file is dropped", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  REQUIRE(plan.replace(*input, FileOffset{3}, bytes_of("345"), "nothing new"));
  REQUIRE(plan.replace(*input, FileOffset{8}, Bytes{}, "no bytes"));
  REQUIRE(plan.replace(*input, FileOffset{10}, Bytes{}, "no bytes at the end"));
  CHECK(plan.empty());
}

TEST_CASE("edits come out sorted by offset whatever the order of the calls", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  for (const std::uint64_t offset : {7U, 1U, 9U, 0U, 4U}) {
    REQUIRE(plan.replace(*input, FileOffset{offset}, bytes_of("x"), "x"));
  }
  std::string offsets;
  for (const Edit& edit : plan.edits()) offsets += std::to_string(edit.offset.value);
  CHECK(offsets == "01479");
  REQUIRE(plan.replace(*input, FileOffset{2}, bytes_of("x"), "after the first look"));
  CHECK(plan.edits()[2].offset == FileOffset{2});
  CHECK(text_of(*apply(plan, *input)) == "xxx3x56x8x");
}

TEST_CASE("a byte can be stated once", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  REQUIRE(plan.replace(*input, FileOffset{4}, bytes_of("4x6"), "trimmed to one byte"));
  struct Case {
    std::uint64_t offset;
    const char* after;
    bool allowed;
  };
  const auto tried = GENERATE(Case{0, "abcde", false}, Case{3, "ab", false}, Case{4, "a", false},
                              Case{5, "a", false}, Case{6, "ab", false}, Case{3, "abcdef", false},
                              Case{4, "4", false}, Case{0, "abcd", true}, Case{7, "abc", true});
  CAPTURE(tried.offset, tried.after);
  const auto result = plan.replace(*input, FileOffset{tried.offset}, bytes_of(tried.after), "b");
  CHECK(result.has_value() == tried.allowed);
  if (!result) {
    CHECK(result.error().code == ErrorCode::internal);
    CHECK(result.error().message == "the edit overlaps an earlier edit");
    CHECK(text_of(*apply(plan, *input)) == "01234x6789");
  }
}

TEST_CASE("an edit behind the end of the file is an error", "[plan]") {
  const auto input = source_of("0123456789");
  const auto offset = GENERATE(std::uint64_t{9}, std::uint64_t{10}, std::uint64_t{11},
                               ~std::uint64_t{0}, ~std::uint64_t{0} - 1);
  CAPTURE(offset);
  Plan plan;
  const auto result = plan.replace(*input, FileOffset{offset}, bytes_of("ab"), "out");
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::internal);
  CHECK(result.error().message == "the edit lies behind the end of the file");
  CHECK(plan.empty());
}

TEST_CASE("appended bytes are aligned in the file, with zeros between", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  CHECK(plan.append(*input, bytes_of("ab"), Size{8}, "first").value() == FileOffset{16});
  CHECK(plan.append(*input, bytes_of("c"), Size{1}, "second").value() == FileOffset{18});
  CHECK(plan.append(*input, bytes_of("d"), Size{4}, "third").value() == FileOffset{20});
  CHECK(plan.appended_why() == std::vector<std::string>{"first", "second", "third"});
  REQUIRE(plan.replace(*input, FileOffset{0}, bytes_of("x"), "x"));
  using namespace std::string_literals;
  CHECK(text_of(*apply(plan, *input)) == "x123456789\0\0\0\0\0\0abc\0d"s);
}

TEST_CASE("appending nothing adds no padding", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  CHECK(plan.append(*input, Bytes{}, Size{4096}, "nothing").value() == FileOffset{4096});
  CHECK(plan.empty());
}

TEST_CASE("an alignment that is not a small power of two is refused", "[plan]") {
  const auto input = source_of("0123456789");
  const auto align = GENERATE(std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{1} << 25,
                              std::uint64_t{1} << 63, ~std::uint64_t{0});
  CAPTURE(align);
  Plan plan;
  const auto result = plan.append(*input, bytes_of("a"), Size{align}, "a");
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::internal);
  CHECK(plan.empty());
}

TEST_CASE("a plan does not apply to another file", "[plan]") {
  const auto input = source_of("0123456789");
  Plan plan;
  REQUIRE(plan.replace(*input, FileOffset{8}, bytes_of("x"), "x"));
  const auto other = GENERATE("01234567_9", "01234567", "");
  CAPTURE(other);
  const auto output = apply(plan, *source_of(other));
  REQUIRE_FALSE(output);
  CHECK(output.error().code == ErrorCode::internal);
  CHECK(output.error().message == "the input does not hold the bytes the plan was made from");
}
