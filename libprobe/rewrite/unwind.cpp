#include "libprobe/rewrite/unwind.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "libprobe/rewrite/unwind_frames.hpp"
#include "libprobe/rewrite/unwind_program.hpp"
#include "libprobe/rewrite/unwind_rows.hpp"

namespace reprobe {

Result<Bytes> UnwindWriter::Frames::assemble(FrameSection::Kind kind, std::uint64_t place,
                                             const ElfHeader& header,
                                             std::vector<std::uint64_t>& fdes) const {
  FrameSection section(kind, place, header);
  std::map<VirtAddr, std::uint64_t> offsets;
  for (const auto& [address, cie] : cies)
    offsets[address] = section.add_cie(cie.original, cie.program);
  for (const StubFrame& stub : stubs) {
    const auto fde = section.add_fde(cies.at(stub.cie).original, offsets.at(stub.cie), stub);
    if (!fde) return tl::unexpected(fde.error());
    fdes.push_back(*fde);
  }
  if (kind == FrameSection::Kind::eh_frame) section.add_terminator();
  return section.bytes();
}

Result<UnwindWriter> UnwindWriter::open(const ElfFile& file) {
  auto index = read_unwind_index(file);
  if (!index) return tl::unexpected(index.error());
  return UnwindWriter(file, std::move(*index));
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
  source_ = Source{std::move(*cie), *fde, std::move(*rows)};
  return &*source_;
}

Result<std::vector<CfiRow>> UnwindWriter::rows(std::span<const StubPiece> pieces,
                                               const Source& source) const {
  std::vector<CfiRow> rows;
  for (const StubPiece& piece : pieces) {
    if (!in_range(piece.original.value, source.fde.start.value, source.fde.size.value))
      return fail(ErrorCode::refused, ".eh_frame", "the stub's code comes from two functions");
    auto row = moved_row(source.rows.at(piece.original), piece.cfa_adjust, file_->header());
    if (!row) return tl::unexpected(row.error());
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<void> UnwindWriter::check(std::span<const StubPiece> pieces) {
  if (pieces.empty()) return {};
  const auto original = source(pieces.front().original);
  if (!original) return tl::unexpected(original.error());
  if (*original == nullptr) return {};
  const auto moved = rows(pieces, **original);
  if (!moved) return tl::unexpected(moved.error());
  CfiProgramWriter writer(file_->header(), (*original)->cie);
  std::optional<CfiRow> before;
  for (const CfiRow& row : *moved) {
    if (auto ok = writer.change(before, row); !ok) return ok;
    before = row;
  }
  return {};
}

Result<StubFrame> UnwindWriter::frame(const Stub& stub, const Source& source) const {
  const auto moved = rows(stub.pieces, source);
  if (!moved) return tl::unexpected(moved.error());
  CfiProgramWriter writer(file_->header(), source.cie);
  const VirtAddr start = stub.pieces.front().start;
  VirtAddr at = start;  // end of the pieces so far
  VirtAddr row_at = start;
  const CfiRow* row = &source.rows.initial;
  for (std::size_t i = 0; i < stub.pieces.size(); ++i) {
    const StubPiece& piece = stub.pieces[i];
    const auto end = checked_add(piece.start.value, piece.size.value);
    if (piece.start != at || piece.size.value == 0 || !end)
      return fail(ErrorCode::internal, ".eh_frame", "the pieces of a stub are not contiguous");
    at = VirtAddr{*end};
    if (*row == (*moved)[i]) continue;
    if (auto ok = writer.advance(piece.start.value - row_at.value); !ok)
      return tl::unexpected(ok.error());
    if (auto ok = writer.change(*row, (*moved)[i]); !ok) return tl::unexpected(ok.error());
    row = &(*moved)[i];
    row_at = piece.start;
  }
  StubFrame frame{start, Size{at.value - start.value}, source.cie.address, writer.bytes()};

  // Read back, they give what they were written from.
  CfiFde fde;
  fde.start = start;
  fde.size = frame.size;
  fde.program = {frame.program, start};
  const auto back = read_rows(*file_, source.cie, fde);
  for (std::size_t i = 0; i < stub.pieces.size(); ++i) {
    if (!back || !(back->at(stub.pieces[i].start) == (*moved)[i]))
      return fail(ErrorCode::internal, ".eh_frame", "a stub's rows, read back, differ");
  }
  return frame;
}

Result<UnwindWriter::Frames> UnwindWriter::frames(std::span<const Stub> stubs) {
  Frames frames;
  for (const Stub& stub : stubs) {
    if (stub.pieces.empty()) continue;
    const auto original = source(stub.pieces.front().original);
    if (!original) return tl::unexpected(original.error());
    if (*original == nullptr) continue;
    auto made = frame(stub, **original);
    if (!made) return tl::unexpected(made.error());
    frames.stubs.push_back(std::move(*made));
    const CfiCie& cie = (*original)->cie;
    if (frames.cies.contains(cie.address)) continue;
    CfiProgramWriter initial(file_->header(), cie);
    if (auto ok = initial.change(std::nullopt, (*original)->rows.initial); !ok)
      return tl::unexpected(ok.error());
    frames.cies.emplace(cie.address, Frames::Cie{cie, initial.bytes()});
  }
  return frames;
}

Result<UnwindSizes> UnwindWriter::sizes(std::span<const Stub> stubs) {
  const auto parts = frames(stubs);
  if (!parts) return tl::unexpected(parts.error());
  UnwindSizes sizes;
  if (parts->stubs.empty()) return sizes;
  // Any place near gives the same sizes.
  const std::uint64_t near = parts->stubs.front().start.value;
  const auto shared = share(stubs);
  if (!shared) return tl::unexpected(shared.error());
  if (*shared) {
    const auto tables = build_shared(**shared, *parts, {VirtAddr{near}, VirtAddr{near}, 0});
    if (!tables) return tl::unexpected(tables.error());
    return UnwindSizes{Size{tables->eh_frame.size()}, Size{0}, Size{tables->debug_frame.size()}};
  }
  std::vector<std::uint64_t> fdes;
  const auto eh_frame = parts->assemble(FrameSection::Kind::eh_frame, near, file_->header(), fdes);
  if (!eh_frame) return tl::unexpected(eh_frame.error());
  const auto debug_frame =
      parts->assemble(FrameSection::Kind::debug_frame, 0, file_->header(), fdes);
  if (!debug_frame) return tl::unexpected(debug_frame.error());
  sizes.eh_frame = Size{eh_frame->size()};
  sizes.debug_frame = Size{debug_frame->size()};
  sizes.eh_frame_hdr =
      Size{kUnwindIndexHead + (index_.entries.size() + parts->stubs.size()) * kUnwindIndexEntry};
  return sizes;
}

Result<UnwindTables> UnwindWriter::build(std::span<const Stub> stubs, const UnwindPlaces& places) {
  const auto parts = frames(stubs);
  if (!parts) return tl::unexpected(parts.error());
  UnwindTables tables;
  if (parts->stubs.empty()) return tables;
  const auto shared = share(stubs);
  if (!shared) return tl::unexpected(shared.error());
  if (*shared) return build_shared(**shared, *parts, places);
  std::vector<std::uint64_t> fdes;
  auto debug_frame = parts->assemble(FrameSection::Kind::debug_frame, places.debug_frame_offset,
                                     file_->header(), fdes);
  if (!debug_frame) return tl::unexpected(debug_frame.error());
  fdes.clear();
  auto eh_frame =
      parts->assemble(FrameSection::Kind::eh_frame, places.eh_frame.value, file_->header(), fdes);
  if (!eh_frame) return tl::unexpected(eh_frame.error());

  std::vector<UnwindEntry> entries = index_.entries;
  for (std::size_t i = 0; i < fdes.size(); ++i)
    entries.push_back({parts->stubs[i].start, VirtAddr{places.eh_frame.value + fdes[i]}});
  std::ranges::stable_sort(entries, {}, &UnwindEntry::start);
  for (const StubFrame& stub : parts->stubs) {
    const auto next = std::ranges::upper_bound(entries, stub.start, {}, &UnwindEntry::start);
    const auto same = std::ranges::lower_bound(entries, stub.start, {}, &UnwindEntry::start);
    if (next - same != 1 ||
        (next != entries.end() && next->start.value - stub.start.value < stub.size.value))
      return fail(ErrorCode::refused, ".eh_frame_hdr", "a stub lies on a function or on a stub");
  }
  auto hdr = write_unwind_index(entries, index_.eh_frame, places.eh_frame_hdr, file_->header());
  if (!hdr) return tl::unexpected(hdr.error());
  tables.eh_frame = std::move(*eh_frame);
  tables.eh_frame_hdr = std::move(*hdr);
  tables.debug_frame = std::move(*debug_frame);
  return tables;
}

}  // namespace reprobe
