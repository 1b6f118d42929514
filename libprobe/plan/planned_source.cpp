#include "libprobe/plan/planned_source.hpp"

#include <algorithm>
#include <list>

namespace reprobe {
namespace {

class PlannedSource final : public ByteSource {
 public:
  PlannedSource(const ByteSource& input, const Plan& plan) : input_(input), plan_(plan) {}

  std::uint64_t size() const override { return kept() + plan_.appended().size(); }

  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    const auto end = checked_add(offset.value, size.value);
    const auto appended = borrowed_source(plan_.appended());
    // Behind the input's end, or all in it and untouched: no copy. What lies nowhere is an error of
    // the part that would have to hold it.
    if (offset.value >= kept()) return appended->slice({offset.value - kept()}, size, what);
    const auto edits = edits_in(offset.value, end.value_or(0));
    if (!end || (*end <= kept() && edits.empty())) return input_.slice(offset, size, what);

    const std::uint64_t in_input = std::min(*end, kept()) - offset.value;
    const auto first = input_.slice(offset, {in_input}, what);
    const auto second = appended->slice({0}, {size.value - in_input}, what);
    if (!first) return tl::unexpected(first.error());
    if (!second) return tl::unexpected(second.error());
    Bytes& bytes = copies_.emplace_back(first->begin(), first->end());
    for (const Edit& edit : edits) overwrite(bytes, offset.value, edit);
    bytes.insert(bytes.end(), second->begin(), second->end());
    return bytes;
  }

 private:
  std::uint64_t kept() const { return plan_.kept(input_).value; }

  // The edits that change a byte of [begin, end).
  std::span<const Edit> edits_in(std::uint64_t begin, std::uint64_t end) const {
    const std::vector<Edit>& edits = plan_.edits();
    const auto ends_after = std::ranges::partition_point(
        edits, [&](const Edit& edit) { return edit.offset.value + edit.after.size() <= begin; });
    const auto starts_behind = std::ranges::partition_point(
        edits, [&](const Edit& edit) { return edit.offset.value < end; });
    if (ends_after >= starts_behind) return {};
    return {ends_after, starts_behind};
  }

  static void overwrite(Bytes& bytes, std::uint64_t begin, const Edit& edit) {
    const std::uint64_t from = std::max(begin, edit.offset.value);
    const std::uint64_t to = std::min(begin + bytes.size(), edit.offset.value + edit.after.size());
    for (std::uint64_t at = from; at < to; ++at)
      bytes[static_cast<std::size_t>(at - begin)] =
          edit.after[static_cast<std::size_t>(at - edit.offset.value)];
  }

  const ByteSource& input_;
  const Plan& plan_;
  mutable std::list<Bytes> copies_;
};

}  // namespace

std::shared_ptr<const ByteSource> planned_source(const ByteSource& input, const Plan& plan) {
  return std::make_shared<PlannedSource>(input, plan);
}

}  // namespace reprobe
