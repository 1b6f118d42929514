#include "libprobe/rewrite/index/renew.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/index/index_of.hpp"

namespace reprobe {
namespace {

// Of an index of some of the probes, those with its names; every probe of another.
std::function<bool(const Probe&)> selection_of(const ProbeIndex& index) {
  if (!index.partial) return {};
  using Names = std::set<std::pair<std::string, std::string>>;
  const auto names = std::make_shared<Names>();
  for (const IndexEntry& entry : index.entries) names->emplace(entry.provider, entry.name);
  return [names](const Probe& probe) {
    return names->contains({probe.note.provider, probe.note.name});
  };
}

// What the notes of the plan's output say; nothing where it has none.
Result<std::optional<ProbeIndex>> index_after(const ElfFile& file, const Plan& plan,
                                              const ProbeIndex& old) {
  const auto after = ElfFile::open(planned_source(file.source(), plan));
  if (!after) return tl::unexpected(after.error());
  if (std::ranges::none_of(after->sections(), holds_notes)) return std::nullopt;
  auto index = index_of(*after, read_probes(*after), selection_of(old));
  if (!index) return tl::unexpected(index.error());
  return std::move(*index);
}

Result<RenewedIndex> write_index(Plan& plan, const ElfFile& file, const IndexPlace& place,
                                 const ProbeIndex& old, const Result<ProbeIndex>& wanted) {
  if (wanted && same_notes(old, *wanted)) return RenewedIndex{IndexFate::same, ""};
  RenewedIndex renewed{IndexFate::renewed, ""};
  Result<Bytes> bytes = tl::unexpected(Error{});
  if (!wanted) {
    bytes = tl::unexpected(wanted.error());
  } else if (index_size(*wanted) > place.size.value) {
    bytes = fail(ErrorCode::refused, "", "it has grown and does not fit its place");
  } else {
    bytes = encode_index(*wanted, place.address, place.size, file.header());
  }
  if (!bytes) {
    if (bytes.error().code != ErrorCode::refused) return tl::unexpected(bytes.error());
    renewed = {IndexFate::emptied, bytes.error().message};
    ProbeIndex empty;
    empty.partial = old.partial;
    bytes = encode_index(empty, place.address, place.size, file.header());
    if (!bytes) return tl::unexpected(bytes.error());
  }
  auto done =
      plan.replace(file.source(), place.offset, std::move(*bytes),
                   renewed.fate == IndexFate::renewed ? "the index says what the notes say"
                                                      : "the index is empty, the notes differ");
  if (!done) return tl::unexpected(done.error());
  return renewed;
}

}  // namespace

Result<RenewedIndex> renew_index(Plan& plan, const ElfFile& file, const Plan* finished) {
  const auto place = find_index(file);
  if (!place) return RenewedIndex{};
  const auto old = read_index(file, *place);
  if (!old) return tl::unexpected(old.error());
  auto wanted = index_after(file, finished != nullptr ? *finished : plan, *old);
  if (!wanted) return write_index(plan, file, *place, *old, tl::unexpected(wanted.error()));
  if (!*wanted) return RenewedIndex{IndexFate::same, ""};
  return write_index(plan, file, *place, *old, std::move(**wanted));
}

}  // namespace reprobe
