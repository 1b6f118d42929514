#include "libprobe/code/unwind.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "libprobe/code/unwind_merge.hpp"
#include "libprobe/code/unwind_records.hpp"
#include "libprobe/code/unwind_rows.hpp"

namespace reprobe {
namespace {

// Rules of all functions with stubs together: seconds of work, many times what the largest programs
// ask for.
constexpr std::size_t kMaxSourceRules = std::size_t{1} << 26;
// Every unwinding through a shared FDE runs its program from the start: about a microsecond for
// each 256 bytes.
constexpr std::size_t kStubsOfOne = 64;
constexpr std::size_t kLongestShared = std::size_t{1} << 14;
// Files have a handful of CIEs that differ in more than the personality.
constexpr std::size_t kComparedKinds = 16;

auto no_stub(const char* what) { return fail(ErrorCode::refused, ".eh_frame", what); }

// The code of one FDE to write.
struct Frame {
  std::size_t kind{};
  FdeRange code;
  Bytes program;
};

Result<void> add_frame(std::vector<Frame>& frames, const ElfFile& file,
                       std::span<const FrameKind> kinds, std::size_t kind,
                       std::span<const FrameRows> parts) {
  auto program = frame_program(file, kinds[kind], parts);
  if (!program) return tl::unexpected(program.error());
  if (parts.size() > 1 && program->size() > kLongestShared)
    return no_stub("too many stubs to share an FDE");
  const VirtAddr start = parts.front().start;
  const FdeRange code{start, Size{parts.back().end().value - start.value}};
  frames.push_back({kind, code, std::move(*program)});
  return {};
}

struct Assembled {
  Bytes bytes;
  std::vector<std::uint64_t> fdes;  // offset of each
};

// `place`: the section's address, or the offset in .debug_frame.
Result<Assembled> assemble(FrameSection::Kind section_kind, std::uint64_t place,
                           const ElfFile& file, std::span<const FrameKind> kinds,
                           std::span<const Frame> frames) {
  FrameSection section(section_kind, place, file.header());
  std::vector<std::optional<std::uint64_t>> cies(kinds.size());
  Assembled assembled;
  for (const Frame& frame : frames) {
    const FrameKind& kind = kinds[frame.kind];
    std::optional<std::uint64_t>& cie = cies[frame.kind];
    if (!cie) {
      const auto initial = initial_program(file.header(), kind);
      if (!initial) return tl::unexpected(initial.error());
      cie = section.add_cie(kind.cie, *initial);
    }
    const auto fde = section.add_fde(kind.cie, *cie, frame.code, frame.program);
    if (!fde) return tl::unexpected(fde.error());
    assembled.fdes.push_back(*fde);
  }
  if (section_kind == FrameSection::Kind::eh_frame) section.add_terminator();
  assembled.bytes = section.bytes();
  return assembled;
}

// The bytes that align the next stub run never: they need no rows of their own.
std::vector<FrameRows> without_padding(std::vector<FrameRows> stubs) {
  constexpr std::uint64_t kAlignment = 64;
  for (std::size_t i = 0; i + 1 < stubs.size(); ++i) {
    const std::uint64_t distance = stubs[i + 1].start.value - stubs[i].start.value;
    if (distance - stubs[i].size.value < kAlignment) stubs[i].size.value = distance;
  }
  return stubs;
}

}  // namespace

// The stubs that can be described, by their place.
struct UnwindWriter::Frames {
  std::vector<FrameKind> kinds;
  std::vector<FrameRows> stubs;
  std::vector<std::size_t> kind_of;  // each stub's

  // An FDE for each.
  [[nodiscard]] Result<std::vector<Frame>> separate(const ElfFile& file) const {
    std::vector<Frame> frames;
    for (std::size_t i = 0; i < stubs.size(); ++i) {
      if (auto ok = add_frame(frames, file, kinds, kind_of[i], std::span(stubs).subspan(i, 1)); !ok)
        return tl::unexpected(ok.error());
    }
    return frames;
  }

  std::size_t kind_index(const FrameKind& kind) {
    const std::size_t compared = std::min(kinds.size(), kComparedKinds);
    for (std::size_t i = 0; i < compared; ++i)
      if (same_kind(kinds[i], kind)) return i;
    kinds.push_back(kind);
    return kinds.size() - 1;
  }

  void sort_by_place() {
    std::vector<std::size_t> order(stubs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return stubs[i].start; });
    Frames sorted;
    for (const std::size_t i : order) {
      sorted.stubs.push_back(std::move(stubs[i]));
      sorted.kind_of.push_back(kind_of[i]);
    }
    stubs = std::move(sorted.stubs);
    kind_of = std::move(sorted.kind_of);
  }
};

Result<UnwindWriter> UnwindWriter::open(const ElfFile& file, Size most_rebuilt) {
  auto index = read_unwind_index(file);
  if (!index) return tl::unexpected(index.error());
  return UnwindWriter(file, std::move(*index), most_rebuilt);
}

// nullptr where the code has no unwind information.
Result<const UnwindWriter::Source*> UnwindWriter::source(VirtAddr original) {
  const auto covers = [&](const CfiFde& fde) {
    return in_range(original.value, fde.start.value, fde.size.value);
  };
  if (source_ && covers(source_->fde)) return &*source_;
  const auto after = std::ranges::upper_bound(index_.entries, original, {}, &UnwindEntry::start);
  if (after == index_.entries.begin()) return nullptr;
  std::optional<CfiCie> cie;
  auto fde = read_fde(*file_, std::prev(after)->fde, cie);
  if (!fde) return tl::unexpected(fde.error());
  if (!covers(*fde)) return nullptr;
  auto rows = read_rows(*file_, *cie, *fde);
  if (!rows) return tl::unexpected(rows.error());
  rules_ += rows->rules;
  if (rules_ > kMaxSourceRules) return no_stub("more unwind information than can be read");
  const CfiRow initial = rows->initial;
  source_ = Source{{std::move(*cie), initial}, *fde, std::move(*rows)};
  return &*source_;
}

Result<FrameRows> UnwindWriter::rows(std::span<const StubPiece> pieces,
                                     const Source& source) const {
  FrameRows stub{pieces.front().start, Size{0}, {}};
  for (const StubPiece& piece : pieces) {
    if (!in_range(piece.original.value, source.fde.start.value, source.fde.size.value))
      return no_stub("the stub's code comes from two functions");
    auto row = moved_row(source.rows.at(piece.original), piece.cfa_adjust, file_->header());
    if (!row) return tl::unexpected(row.error());
    stub.rows.push_back({piece.start, std::move(*row)});
    stub.size.value = piece.start.value + piece.size.value - stub.start.value;
  }
  return stub;
}

Result<void> UnwindWriter::check(std::span<const StubPiece> pieces) {
  if (pieces.empty()) return {};
  const auto original = source(pieces.front().original);
  if (!original) return tl::unexpected(original.error());
  if (*original == nullptr) return {};
  std::vector<StubPiece> placed(pieces.begin(), pieces.end());
  // Any contiguous places do; a multiple of every code alignment.
  for (std::size_t i = 0; i < placed.size(); ++i) {
    placed[i].start = VirtAddr{i * 64 * (*original)->kind.cie.code_alignment};
    placed[i].size = Size{64 * (*original)->kind.cie.code_alignment};
  }
  const auto stub = rows(placed, **original);
  if (!stub) return tl::unexpected(stub.error());
  const auto program = frame_program(*file_, (*original)->kind, std::span(&*stub, 1));
  if (!program) return tl::unexpected(program.error());
  return {};
}

bool UnwindWriter::same_row(VirtAddr a, VirtAddr b) {
  const auto of_a = source(a);
  if (!of_a) return false;
  // The source of `b` may take the place of the other one.
  const std::optional<CfiRow> row =
      *of_a == nullptr ? std::nullopt : std::optional((*of_a)->rows.at(a));
  const auto of_b = source(b);
  if (!of_b || (*of_b == nullptr) != !row) return false;
  return !row || (*of_b)->rows.at(b) == *row;
}

bool UnwindWriter::names_below_stack(VirtAddr at) {
  constexpr std::uint64_t kStackPointer = 7;  // System V ABI, x86-64, figure 3.36
  const auto found = source(at);
  if (!found || *found == nullptr || file_->header().machine != EM_X86_64) return false;
  const CfiRow& row = (*found)->rows.at(at);
  if (row.cfa.is_expression || row.cfa.reg != kStackPointer) return false;
  return std::ranges::any_of(row.registers, [&](const auto& reg) {
    const RegisterRule& rule = reg.second;
    return rule.kind == RegisterRule::Kind::offset && rule.value < -row.cfa.offset;
  });
}

Result<UnwindWriter::Frames> UnwindWriter::describe(std::span<const Stub> stubs) {
  // By the function they come from: each is read once.
  std::vector<const Stub*> order;
  for (const Stub& stub : stubs)
    if (!stub.pieces.empty()) order.push_back(&stub);
  std::ranges::stable_sort(order, {},
                           [](const Stub* stub) { return stub->pieces.front().original; });
  Frames frames;
  for (const Stub* stub : order) {
    VirtAddr end = stub->pieces.front().start;
    for (const StubPiece& piece : stub->pieces) {
      const auto next = checked_add(piece.start.value, piece.size.value);
      if (piece.start != end || piece.size.value == 0 || !next)
        return fail(ErrorCode::internal, ".eh_frame", "the pieces of a stub are not contiguous");
      end = VirtAddr{*next};
    }
    const auto original = source(stub->pieces.front().original);
    if (!original) return tl::unexpected(original.error());
    if (*original == nullptr) continue;
    auto described = rows(stub->pieces, **original);
    if (!described) return tl::unexpected(described.error());
    frames.stubs.push_back(std::move(*described));
    frames.kind_of.push_back(frames.kind_index((*original)->kind));
  }
  frames.sort_by_place();
  return frames;
}

// No function may begin in the stub or go on into it: the table would hide the one or the other.
Result<void> UnwindWriter::check_place(const FrameRows& stub) const {
  const auto after = std::ranges::upper_bound(index_.entries, stub.start, {}, &UnwindEntry::start);
  if (after != index_.entries.end() && after->start < stub.end())
    return no_stub("a stub lies on a function");
  if (after == index_.entries.begin()) return {};
  std::optional<CfiCie> cie;
  const auto before = read_fde(*file_, std::prev(after)->fde, cie);
  if (before && in_range(stub.start.value, before->start.value, before->size.value))
    return no_stub("a stub lies on a function");
  return {};
}

Result<UnwindTables> UnwindWriter::build_beside(const Frames& frames,
                                                const UnwindPlaces& places) const {
  UnwindTables tables;
  const auto separate = frames.separate(*file_);
  if (!separate) return tl::unexpected(separate.error());
  auto debug_frame = assemble(FrameSection::Kind::debug_frame, places.debug_frame_offset, *file_,
                              frames.kinds, *separate);
  if (!debug_frame) return tl::unexpected(debug_frame.error());
  tables.debug_frame = std::move(debug_frame->bytes);
  if (index_.found == UnwindIndex::Found::not_at_all) return tables;

  auto eh_frame = assemble(FrameSection::Kind::eh_frame, places.eh_frame.value, *file_,
                           frames.kinds, *separate);
  if (!eh_frame) return tl::unexpected(eh_frame.error());
  std::vector<UnwindEntry> entries;
  if (index_.found == UnwindIndex::Found::by_table) entries = index_.entries;
  for (std::size_t i = 0; i < separate->size(); ++i)
    entries.push_back({frames.stubs[i].start, VirtAddr{places.eh_frame.value + eh_frame->fdes[i]}});
  std::ranges::stable_sort(entries, {}, &UnwindEntry::start);
  auto table = write_unwind_index(entries, index_.eh_frame, places.eh_frame_hdr, file_->header());
  if (!table) return tl::unexpected(table.error());
  tables.eh_frame = std::move(eh_frame->bytes);
  tables.eh_frame_hdr = std::move(*table);
  return tables;
}

Result<std::optional<UnwindTables>> UnwindWriter::build_over_old(const Frames& frames,
                                                                 const UnwindPlaces& places) const {
  const std::optional<UnwindTables> nothing;
  if (!index_.table || frames.kinds.size() > 1) return nothing;
  const VirtAddr first = frames.stubs.front().start;
  const auto after = std::ranges::upper_bound(index_.entries, first, {}, &UnwindEntry::start);
  if (after != index_.entries.end() && after->start < frames.stubs.back().end()) return nothing;
  const auto end = static_cast<std::size_t>(after - index_.entries.begin());
  const std::size_t count = frames.stubs.size();
  auto pairs = find_merged_pairs(*file_, index_, end, frames.kinds.front(),
                                 (count + kStubsOfOne - 1) / kStubsOfOne);
  if (pairs.empty()) return nothing;
  const std::size_t of_one = (count + pairs.size() - 1) / pairs.size();
  const std::size_t needed = (count + of_one - 1) / of_one;
  pairs.erase(pairs.begin(), pairs.end() - static_cast<std::ptrdiff_t>(needed));

  // FDEs of the pairs, then those of the stubs, as many. elfutils follows the table, refuses what
  // lies outside .eh_frame, and goes on in .debug_frame: the pairs must be there as well.
  const std::vector<FrameRows> stubs = without_padding(frames.stubs);
  std::vector<Frame> shared;
  auto separate = frames.separate(*file_);
  Result<void> ok;
  const auto add = [&](std::vector<Frame>& to, std::span<const FrameRows> parts) {
    if (ok) ok = add_frame(to, *file_, frames.kinds, 0, parts);
  };
  if (!separate) return tl::unexpected(separate.error());
  for (const MergedPair& pair : pairs) {
    add(shared, pair.functions);
    for (const std::size_t i : {0U, 1U}) add(*separate, std::span(pair.functions).subspan(i, 1));
  }
  for (std::size_t i = 0; i < count; i += of_one)
    add(shared, std::span(stubs).subspan(i, std::min(of_one, count - i)));
  if (!ok && ok.error().code == ErrorCode::refused) return nothing;
  if (!ok) return tl::unexpected(ok.error());

  auto eh_frame =
      assemble(FrameSection::Kind::eh_frame, places.eh_frame.value, *file_, frames.kinds, shared);
  if (!eh_frame) return tl::unexpected(eh_frame.error());
  auto debug_frame = assemble(FrameSection::Kind::debug_frame, places.debug_frame_offset, *file_,
                              frames.kinds, *separate);
  if (!debug_frame) return tl::unexpected(debug_frame.error());

  const auto entry = [&](std::size_t i) {
    return UnwindEntry{shared[i].code.start, VirtAddr{places.eh_frame.value + eh_frame->fdes[i]}};
  };
  std::vector<UnwindEntry> entries;  // from the first pair's on, as many as there were
  std::size_t at = pairs.front().first;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (; at < pairs[i].first; ++at) entries.push_back(index_.entries[at]);
    entries.push_back(entry(i));
    at += 2;
  }
  for (; at < end; ++at) entries.push_back(index_.entries[at]);
  for (std::size_t i = pairs.size(); i < shared.size(); ++i) entries.push_back(entry(i));

  Bytes edit;
  ok = append_unwind_entries(edit, entries, index_.table->base, file_->header());
  if (!ok) return tl::unexpected(ok.error());
  const VirtAddr edit_at{index_.table->entries.value + pairs.front().first * kUnwindIndexEntry};
  return UnwindTables{std::move(eh_frame->bytes),
                      {},
                      std::pair(edit_at, std::move(edit)),
                      std::move(debug_frame->bytes)};
}

Result<UnwindTables> UnwindWriter::build(std::span<const Stub> stubs, const UnwindPlaces& places) {
  const auto frames = describe(stubs);
  if (!frames) return tl::unexpected(frames.error());
  if (frames->stubs.empty()) return UnwindTables{};
  for (std::size_t i = 0; i < frames->stubs.size(); ++i) {
    if (i != 0 && frames->stubs[i].start < frames->stubs[i - 1].end())
      return no_stub("a stub lies on a stub");
    if (auto ok = check_place(frames->stubs[i]); !ok) return tl::unexpected(ok.error());
  }
  if (index_.entries.size() * kUnwindIndexEntry > most_rebuilt_.value) {
    auto tables = build_over_old(*frames, places);
    if (!tables) return tl::unexpected(tables.error());
    if (*tables) return std::move(**tables);
  }
  return build_beside(*frames, places);
}

Result<UnwindSizes> UnwindWriter::sizes(std::span<const Stub> stubs) {
  // Behind everything that is there; at the given distances, or, where stubs would lie on each
  // other, further apart than a short advance can state: no final place takes more.
  constexpr std::uint64_t kApart = 0x10000;
  std::uint64_t at = kApart;
  if (!index_.entries.empty()) {
    std::optional<CfiCie> cie;
    const auto last = read_fde(*file_, index_.entries.back().fde, cie);
    at += std::max(index_.entries.back().start.value,
                   last ? last->start.value + last->size.value : std::uint64_t{0});
    at -= at % kApart;
  }
  std::vector<Stub> moved;
  for (const Stub& stub : stubs)
    if (!stub.pieces.empty()) moved.push_back(stub);
  const auto start = [](const Stub& stub) { return stub.pieces.front().start.value; };
  const auto end = [](const Stub& stub) {
    return stub.pieces.back().start.value + stub.pieces.back().size.value;
  };
  const bool final_distances = std::ranges::adjacent_find(moved, [&](const Stub& a, const Stub& b) {
                                 return start(b) < end(a);
                               }) == moved.end();
  const std::uint64_t first = moved.empty() ? 0 : start(moved.front());
  for (Stub& stub : moved) {
    const std::uint64_t by = at - (final_distances ? first : start(stub));
    for (StubPiece& piece : stub.pieces) piece.start.value += by;
    if (!final_distances) at = end(stub) + 2 * kApart - end(stub) % kApart;
  }
  const VirtAddr behind{moved.empty() ? at : end(moved.back())};
  const VirtAddr tables_at{behind.value + kApart - behind.value % kApart};
  const auto tables = build(moved, {tables_at, tables_at, 0});
  if (!tables) return tl::unexpected(tables.error());
  return UnwindSizes{Size{tables->eh_frame.size()}, Size{tables->eh_frame_hdr.size()},
                     Size{tables->debug_frame.size()}};
}

}  // namespace reprobe
