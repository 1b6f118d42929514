#include "libprobe/plan/plan.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace reprobe {
namespace {

std::string range_text(std::uint64_t offset, std::uint64_t size) {
  return "file bytes " + std::to_string(offset) + "+" + std::to_string(size);
}

tl::unexpected<Error> plan_error(std::uint64_t offset, std::uint64_t size, std::string message) {
  return fail(ErrorCode::internal, range_text(offset, size), std::move(message));
}

}  // namespace

Result<void> Plan::claim(std::uint64_t offset, std::uint64_t size) {
  const auto next = claimed_.lower_bound(offset);
  const bool runs_into_next = next != claimed_.end() && next->first - offset < size;
  const bool inside_previous =
      next != claimed_.begin() && in_range(offset, std::prev(next)->first, std::prev(next)->second);
  if (runs_into_next || inside_previous) {
    return plan_error(offset, size, "the edit overlaps an earlier edit");
  }
  claimed_.emplace_hint(next, offset, size);
  return {};
}

Result<void> Plan::replace(const ByteSource& input, FileOffset offset, Bytes after,
                           std::string why) {
  if (after.empty()) return {};
  const auto end = checked_add(offset.value, after.size());
  if (!end || *end > input.size()) {
    return plan_error(offset.value, after.size(), "the edit lies behind the end of the file");
  }
  const auto present = input.slice(offset, Size{after.size()}, "the bytes an edit replaces");
  if (!present) return tl::unexpected(present.error());
  // The whole stated range is claimed, not only the bytes that change: two edits that state the
  // same byte are a contradiction even where one of them restates what is there.
  if (const auto claimed = claim(offset.value, after.size()); !claimed) return claimed;

  const auto first = std::ranges::mismatch(*present, after).in1 - present->begin();
  if (static_cast<std::size_t>(first) == after.size()) return {};
  std::size_t end_of_change = after.size();
  while ((*present)[end_of_change - 1] == after[end_of_change - 1]) --end_of_change;

  const auto begin = static_cast<std::size_t>(first);
  const ByteView before = present->subspan(begin, end_of_change - begin);
  after.erase(after.begin() + static_cast<std::ptrdiff_t>(end_of_change), after.end());
  after.erase(after.begin(), after.begin() + first);
  Edit edit{.offset = FileOffset{offset.value + begin},
            .before = Bytes(before.begin(), before.end()),
            .after = std::move(after),
            .why = std::move(why)};
  sorted_ = sorted_ && (edits_.empty() || edits_.back().offset < edit.offset);
  edits_.push_back(std::move(edit));
  return {};
}

Result<FileOffset> Plan::append(const ByteSource& input, Bytes bytes, Size align, std::string why) {
  if (!std::has_single_bit(align.value)) {
    return fail(ErrorCode::internal, "", "the alignment of appended bytes is not a power of two");
  }
  if (cut_) return plan_error(input.size(), bytes.size(), "nothing follows where the file ends");
  const auto end = checked_add(input.size(), appended_.size());
  const auto rounded = end ? checked_add(*end, align.value - 1) : std::nullopt;
  if (!rounded) return plan_error(input.size(), bytes.size(), "the file would become too large");
  const std::uint64_t at = *rounded & ~(align.value - 1);
  if (bytes.empty()) return FileOffset{at};

  // An alignment is a page or a word; anything larger would be a field of a hostile file.
  constexpr std::uint64_t kMaxAlign = std::uint64_t{1} << 24;
  if (align.value > kMaxAlign || !checked_add(at, bytes.size())) {
    return plan_error(at, bytes.size(), "the file would become too large");
  }
  appended_.resize(appended_.size() + static_cast<std::size_t>(at - *end));
  appended_.insert(appended_.end(), bytes.begin(), bytes.end());
  appended_why_.push_back(std::move(why));
  return FileOffset{at};
}

Result<void> Plan::cut(const ByteSource& input, Size size) {
  if (size.value > input.size() || !appended_.empty()) {
    return plan_error(size.value, 0, "the file cannot end there");
  }
  cut_ = size;
  return {};
}

const std::vector<Edit>& Plan::edits() const {
  if (!sorted_) {
    std::ranges::sort(edits_, {}, &Edit::offset);
    sorted_ = true;
  }
  return edits_;
}

Result<void> check_edit(const Edit& edit, const ByteSource& input) {
  const auto present =
      input.slice(edit.offset, Size{edit.before.size()}, "the bytes an edit replaces");
  if (!present || !std::ranges::equal(*present, edit.before) ||
      edit.before.size() != edit.after.size()) {
    return plan_error(edit.offset.value, edit.before.size(),
                      "the input does not hold the bytes the plan was made from");
  }
  return {};
}

Result<Bytes> apply(const Plan& plan, const ByteSource& input) {
  const auto whole = input.slice(FileOffset{0}, Size{input.size()}, "the whole file");
  if (!whole) return tl::unexpected(whole.error());
  Bytes output;
  output.reserve(whole->size() + plan.appended().size());
  output.assign(whole->begin(), whole->end());
  for (const Edit& edit : plan.edits()) {
    if (const auto checked = check_edit(edit, input); !checked) {
      return tl::unexpected(checked.error());
    }
    std::ranges::copy(edit.after, output.begin() + static_cast<std::ptrdiff_t>(edit.offset.value));
  }
  output.resize(static_cast<std::size_t>(plan.kept(input).value));
  output.insert(output.end(), plan.appended().begin(), plan.appended().end());
  return output;
}

}  // namespace reprobe
