// Unwind information for stubs without a new search table. An FDE covers one range, but its rows
// need not be one function's: the stubs' rows go into a few FDEs, and for each of them two
// neighbouring functions share one, so that the table keeps its length. Every address still has the
// rows it had.
#include <algorithm>

#include "libprobe/rewrite/unwind.hpp"
#include "libprobe/rewrite/unwind_frames.hpp"
#include "libprobe/rewrite/unwind_program.hpp"

namespace reprobe {
namespace {

// Unwinders run an FDE's instructions up to the address they ask for: a few hundred at most.
constexpr std::size_t kStubsOfChunk = 64;
// How far from the table's end pairs are looked for, for each that is needed: in C++ most functions
// have an LSDA.
constexpr std::size_t kEntriesOfPair = 64;

// Without a personality routine, and with nothing that FrameSection would not write.
bool is_plain(const CfiCie& cie) {
  return !cie.signal_frame && !cie.b_key && cie.augmentation.find('P') == std::string::npos &&
         cie.lsda_encoding == DW_EH_PE_omit;
}
bool same_rules(const CfiCie& a, const CfiRow& initial_a, const CfiCie& b,
                const CfiRow& initial_b) {
  return a.code_alignment == b.code_alignment && a.data_alignment == b.data_alignment &&
         a.return_register == b.return_register && a.signal_frame == b.signal_frame &&
         a.b_key == b.b_key && initial_a == initial_b;
}

// A program from rows at ascending addresses, the first of which starts the FDE.
Result<StubFrame> write_rows(const ElfFile& file, const CfiCie& cie, const CfiRow& initial,
                             std::span<const PlacedRow> rows, VirtAddr end) {
  CfiProgramWriter writer(file.header(), cie);
  const CfiRow* row = &initial;
  VirtAddr at = rows.front().start;
  for (const PlacedRow& next : rows) {
    if (next.row == *row) continue;
    if (auto ok = writer.advance(next.start.value - at.value); !ok) {
      return tl::unexpected(ok.error());
    }
    if (auto ok = writer.change(*row, next.row); !ok) return tl::unexpected(ok.error());
    row = &next.row;
    at = next.start;
  }
  const VirtAddr start = rows.front().start;
  StubFrame frame{start, Size{end.value - start.value}, cie.address, writer.bytes()};
  // Read back, they give what they were written from.
  CfiFde fde;
  fde.start = start;
  fde.size = frame.size;
  fde.program = {frame.program, start};
  const auto back = read_rows(file, cie, fde);
  const bool same = back && std::ranges::all_of(rows, [&](const PlacedRow& placed) {
                      return back->at(placed.start) == placed.row;
                    });
  if (!same) return fail(ErrorCode::internal, ".eh_frame", "rows of stubs, read back, differ");
  return frame;
}

}  // namespace

Result<std::optional<UnwindWriter::SharedFrames>> UnwindWriter::share(std::span<const Stub> stubs) {
  const std::optional<SharedFrames> nothing;
  if (index_.table_size <= kMostRebuilt) return nothing;
  SharedFrames shared;
  std::optional<CfiCie> cie;  // of the first stub; all FDEs that are made have its rules
  std::optional<CfiRow> initial;

  // The stubs' rows, chunk by chunk.
  std::vector<PlacedRow> rows_of_chunk;
  VirtAddr end{};
  const auto finish_chunk = [&]() -> Result<void> {
    auto frame = write_rows(*file_, *cie, *initial, rows_of_chunk, end);
    if (!frame) return tl::unexpected(frame.error());
    shared.chunks.stubs.push_back(std::move(*frame));
    rows_of_chunk.clear();
    return {};
  };
  std::size_t in_chunk = 0;
  for (const Stub& stub : stubs) {
    const auto original = source(stub.pieces.front().original);
    if (!original) return tl::unexpected(original.error());
    if (*original == nullptr || (*original)->cie.signal_frame || (*original)->cie.b_key) {
      return nothing;
    }
    if (!cie) {
      cie = (*original)->cie;
      initial = (*original)->rows.initial;
    }
    if (!same_rules(*cie, *initial, (*original)->cie, (*original)->rows.initial)) return nothing;
    const auto moved = rows(stub.pieces, **original);
    if (!moved) return tl::unexpected(moved.error());
    if (in_chunk == kStubsOfChunk) {
      if (auto ok = finish_chunk(); !ok) return tl::unexpected(ok.error());
      in_chunk = 0;
    }
    for (std::size_t i = 0; i < moved->size(); ++i) {
      rows_of_chunk.push_back({stub.pieces[i].start, (*moved)[i]});
    }
    end = VirtAddr{stub.pieces.back().start.value + stub.pieces.back().size.value};
    ++in_chunk;
  }
  if (auto ok = finish_chunk(); !ok) return tl::unexpected(ok.error());
  CfiProgramWriter head(file_->header(), *cie);
  if (auto ok = head.change(std::nullopt, *initial); !ok) return tl::unexpected(ok.error());
  for (Frames* frames : {&shared.chunks, &shared.merged}) {
    frames->cies.emplace(cie->address, Frames::Cie{*cie, head.bytes()});
  }

  // One pair for each chunk, from the table's end on.
  const std::size_t wanted = shared.chunks.stubs.size();
  const std::size_t count = index_.entries.size();
  const std::size_t lowest = count - std::min(count, wanted * kEntriesOfPair);
  struct Candidate {
    CfiCie cie;
    CfiFde fde;
    CfiRows rows;
  };
  std::optional<Candidate> next;  // the entry behind, where it may be one of a pair
  std::optional<CfiCie> last_cie;
  for (std::size_t i = count; i > lowest && shared.merged.stubs.size() < wanted; --i) {
    auto fde = read_fde(*file_, index_.entries[i - 1].fde, last_cie);
    if (!fde) return nothing;
    // Nothing of the program lies behind the stubs.
    if (i == count &&
        fde->start.value + fde->size.value > stubs.front().pieces.front().start.value) {
      return nothing;
    }
    if (fde->has_lsda || !is_plain(*last_cie)) {
      next.reset();
      continue;
    }
    auto rows = read_rows(*file_, *last_cie, *fde);
    if (!rows || !same_rules(*cie, *initial, *last_cie, rows->initial)) {
      next.reset();
      continue;
    }
    Candidate here{*last_cie, *fde, std::move(*rows)};
    if (!next) {
      next = std::move(here);
      continue;
    }
    const std::uint64_t behind = here.fde.start.value + here.fde.size.value;
    if (here.fde.start != index_.entries[i - 1].start || behind > next->fde.start.value) {
      return nothing;  // the table is not what it should be
    }
    std::vector<PlacedRow> both = here.rows.rows;
    if (behind < next->fde.start.value) {
      // Between the two there is no function: a way out ends there, as without an FDE.
      PlacedRow gap{VirtAddr{behind}, *initial};
      gap.row.registers[cie->return_register] = {RegisterRule::Kind::undefined, 0, {}};
      both.push_back(std::move(gap));
    }
    both.insert(both.end(), next->rows.rows.begin(), next->rows.rows.end());
    auto frame = write_rows(*file_, *cie, *initial, both,
                            VirtAddr{next->fde.start.value + next->fde.size.value});
    if (!frame) return nothing;
    shared.merged.stubs.push_back(std::move(*frame));
    shared.entries.push_back(i - 1);
    next.reset();
  }
  if (shared.entries.size() < wanted) return nothing;
  std::ranges::reverse(shared.merged.stubs);
  std::ranges::reverse(shared.entries);
  return std::optional(std::move(shared));
}

Result<UnwindTables> UnwindWriter::build_shared(const SharedFrames& shared, const Frames& frames,
                                                const UnwindPlaces& places) const {
  UnwindTables tables;
  // Debuggers that take no FDE from outside the section .eh_frame find both kinds here.
  Frames described = frames;
  described.cies.insert(shared.merged.cies.begin(), shared.merged.cies.end());
  described.stubs.insert(described.stubs.end(), shared.merged.stubs.begin(),
                         shared.merged.stubs.end());
  std::vector<std::uint64_t> fdes;
  auto debug_frame = described.assemble(FrameSection::Kind::debug_frame, places.debug_frame_offset,
                                        file_->header(), fdes);
  if (!debug_frame) return tl::unexpected(debug_frame.error());
  tables.debug_frame = std::move(*debug_frame);

  Frames all = shared.merged;
  all.stubs.insert(all.stubs.end(), shared.chunks.stubs.begin(), shared.chunks.stubs.end());
  fdes.clear();
  auto eh_frame =
      all.assemble(FrameSection::Kind::eh_frame, places.eh_frame.value, file_->header(), fdes);
  if (!eh_frame) return tl::unexpected(eh_frame.error());
  tables.eh_frame = std::move(*eh_frame);

  const std::size_t first = shared.entries.front();
  std::vector<UnwindEntry> entries;
  auto pair = shared.entries.begin();
  std::size_t fde = 0;
  const auto made = [&](const StubFrame& frame) {
    entries.push_back({frame.start, VirtAddr{places.eh_frame.value + fdes[fde++]}});
  };
  for (std::size_t i = first; i < index_.entries.size(); ++i) {
    if (pair != shared.entries.end() && *pair == i) {
      made(all.stubs[static_cast<std::size_t>(pair - shared.entries.begin())]);
      ++pair;
      ++i;
    } else {
      entries.push_back(index_.entries[i]);
    }
  }
  for (const StubFrame& chunk : shared.chunks.stubs) made(chunk);
  if (entries.size() != index_.entries.size() - first) {
    return fail(ErrorCode::internal, ".eh_frame_hdr", "the search table would change its length");
  }
  auto table = write_unwind_index(entries, index_.eh_frame, index_.table_address, file_->header());
  if (!table) return tl::unexpected(table.error());
  table->erase(table->begin(), table->begin() + kUnwindIndexHead);
  tables.table_edit = {
      VirtAddr{index_.table_address.value + kUnwindIndexHead + first * kUnwindIndexEntry},
      std::move(*table)};
  return tables;
}

}  // namespace reprobe
