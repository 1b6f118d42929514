#include "libprobe/code/unwind_frames.hpp"

#include <optional>

#include "libprobe/code/unwind_program.hpp"

namespace reprobe {
namespace {

// All rows in the order of their places, with one for each gap.
std::vector<PlacedRow> all_rows(const FrameKind& kind, std::span<const FrameRows> parts) {
  CfiRow gap = kind.initial;
  gap.registers[kind.cie.return_register] = {RegisterRule::Kind::undefined};
  std::vector<PlacedRow> rows;
  std::optional<VirtAddr> end;
  for (const FrameRows& part : parts) {
    if (end && *end < part.start) rows.push_back({*end, gap});
    rows.insert(rows.end(), part.rows.begin(), part.rows.end());
    end = part.end();
  }
  return rows;
}

}  // namespace

bool same_kind(const FrameKind& a, const FrameKind& b) {
  return a.cie.code_alignment == b.cie.code_alignment &&
         a.cie.data_alignment == b.cie.data_alignment &&
         a.cie.return_register == b.cie.return_register &&
         a.cie.signal_frame == b.cie.signal_frame && a.cie.b_key == b.cie.b_key &&
         a.initial == b.initial;
}

Result<Bytes> frame_program(const ElfFile& file, const FrameKind& kind,
                            std::span<const FrameRows> parts) {
  const std::vector<PlacedRow> rows = all_rows(kind, parts);
  const VirtAddr start = parts.front().start;
  CfiProgramWriter writer(file.header(), kind.cie);
  const CfiRow* before = &kind.initial;
  VirtAddr at = start;
  for (const PlacedRow& row : rows) {
    if (*before == row.row) continue;
    if (auto ok = writer.advance(row.start.value - at.value); !ok)
      return tl::unexpected(ok.error());
    if (auto ok = writer.change(*before, row.row); !ok) return tl::unexpected(ok.error());
    before = &row.row;
    at = row.start;
  }
  CfiFde fde;
  fde.start = start;
  fde.size = Size{parts.back().end().value - start.value};
  fde.program = {writer.bytes(), start};
  const auto back = read_rows(file, kind.cie, fde);
  for (const PlacedRow& row : rows) {
    if (!back || !(back->at(row.start) == row.row))
      return fail(ErrorCode::internal, ".eh_frame", "the rows, read back, differ");
  }
  return writer.bytes();
}

Result<Bytes> initial_program(const ElfHeader& header, const FrameKind& kind) {
  CfiProgramWriter writer(header, kind.cie);
  if (auto ok = writer.change(std::nullopt, kind.initial); !ok) return tl::unexpected(ok.error());
  return writer.bytes();
}

}  // namespace reprobe
