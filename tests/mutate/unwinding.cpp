// Unwind tables: the table of .eh_frame_hdr, FDEs and CIEs. Format: LSB Core 5.0, 10.6. Pointers
// are taken to have the forms that linkers give them: pc-relative, four bytes, and in .eh_frame_hdr
// relative to it.
#include <fmt/format.h>

#include <algorithm>

#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

constexpr std::uint64_t kHead = 12, kRow = 8;

// The rows of .eh_frame_hdr.
struct Table {
  std::uint64_t at{};
  std::uint64_t address{};
  std::uint64_t count{};
  [[nodiscard]] std::uint64_t row(std::uint64_t i) const { return at + kHead + kRow * i; }
};

Table read_table(Draft& draft) {
  const Segment* segment = draft.any_segment(reprobe::PT_GNU_EH_FRAME);
  if (segment == nullptr || segment->filesz.value < kHead) return {};
  Table table{segment->offset.value, segment->vaddr.value, draft.get(segment->offset.value + 8, 4)};
  return table.count * kRow + kHead <= segment->filesz.value ? table : Table{};
}

bool table_head(Draft& draft) {
  const Table table = read_table(draft);
  if (table.count == 0) return false;
  if (draft.random.one_in(2)) return draft.disturb_byte({table.at, table.at + 4}, "encodings");
  return draft.disturb(table.at + 4 + 4 * draft.random.below(2), 4, "eh_frame_ptr or fde_count");
}

bool table_row(Draft& draft) {
  const Table table = read_table(draft);
  if (table.count == 0) return false;
  return draft.disturb(table.row(draft.random.below(table.count)) + 4 * draft.random.below(2), 4,
                       "row of .eh_frame_hdr");
}

bool swapped_rows(Draft& draft) {
  const Table table = read_table(draft);
  const std::uint64_t a = table.row(draft.random.below(table.count)),
                      b = table.row(draft.random.below(table.count));
  if (table.count < 2 || a == b) return false;
  const bool whole = draft.random.one_in(2);  // else only to which FDEs they lead
  draft.exchange(a + (whole ? 0 : 4), b + (whole ? 0 : 4), whole ? kRow : 4);
  draft.told = fmt::format("rows at {:#x} and {:#x} exchange {}", a, b, whole ? "all" : "FDEs");
  return true;
}

// A row gives way to one that starts inside a function or before it, and leads to another FDE.
bool row_in_a_function(Draft& draft) {
  const Table table = read_table(draft);
  if (table.count < 3) return false;
  std::vector<std::pair<std::int32_t, std::int32_t>> rows;
  for (std::uint64_t i = 0; i < table.count; ++i) {
    rows.emplace_back(static_cast<std::int32_t>(draft.get(table.row(i), 4)),
                      static_cast<std::int32_t>(draft.get(table.row(i) + 4, 4)));
  }
  const auto into = rows[draft.random.below(rows.size())].first;
  const auto fde = rows[draft.random.below(rows.size())].second;
  const std::size_t gone =
      draft.random.one_in(2) ? rows.size() - 1 : draft.random.below(rows.size());
  const auto start = static_cast<std::int32_t>(into + 8 - static_cast<int>(draft.random.below(13)));
  rows[gone] = {start, fde};
  std::ranges::stable_sort(rows, {}, &std::pair<std::int32_t, std::int32_t>::first);
  for (std::uint64_t i = 0; i < table.count; ++i) {
    draft.put(table.row(i), 4, static_cast<std::uint32_t>(rows[i].first));
    draft.put(table.row(i) + 4, 4, static_cast<std::uint32_t>(rows[i].second));
  }
  draft.told = fmt::format("row {} gives way to one for {:#x}", gone,
                           table.address + static_cast<std::uint64_t>(std::int64_t{start}));
  return true;
}

// A record of .eh_frame, .debug_frame or of what the rewrite added: its length field, the rest.
struct Record {
  std::uint64_t at{};
  std::uint64_t end{};
  bool is_cie{};
  std::uint64_t pointer{};  // where the CIE pointer or id stands
};

std::vector<Record> read_records(const Draft& draft) {
  std::vector<Record> records;
  for (const Section& section : draft.file.sections()) {
    const bool debug = section.name == ".debug_frame";
    if ((!debug && !section.name.starts_with(".eh_frame")) || section.name == ".eh_frame_hdr")
      continue;
    const std::uint64_t end = section.offset.value + section.size.value;
    for (std::uint64_t at = section.offset.value; at + 8 <= end;) {
      const std::uint64_t size = draft.get(at, 4);
      if (size < 4 || size > end - at - 4) break;
      const std::uint64_t id = draft.get(at + 4, 4);
      records.push_back({at, at + 4 + size, debug ? id == 0xffffffff : id == 0, at + 4});
      at += 4 + size;
    }
  }
  return records;
}

const Record* any_record(Draft& draft, std::vector<Record>& records, bool cie) {
  records = read_records(draft);
  std::erase_if(records, [&](const Record& record) { return record.is_cie != cie; });
  // Half of the time one of those that the rewrite added or changed.
  if (draft.random.one_in(2)) {
    auto touched = records;
    std::erase_if(touched, [&](const Record& record) {
      return std::ranges::none_of(draft.changed, [&](const Span& span) {
        return record.at < span.end && span.begin < record.end;
      });
    });
    if (!touched.empty()) records = std::move(touched);
  }
  return records.empty() ? nullptr : &records[draft.random.below(records.size())];
}

bool fde_field(Draft& draft) {
  std::vector<Record> records;
  const Record* fde = any_record(draft, records, false);
  if (fde == nullptr || fde->end - fde->at < 17) return false;
  constexpr const char* kNames[] = {"FDE length", "CIE pointer", "pc_begin", "pc_range"};
  const std::uint64_t i = draft.random.below(4);
  return draft.disturb(fde->at + 4 * i, 4, kNames[i]);
}

bool longer_fde(Draft& draft) {
  std::vector<Record> records;
  const Record* fde = any_record(draft, records, false);
  if (fde == nullptr || fde->end - fde->at < 17) return false;
  const std::uint64_t old = draft.get(fde->at + 12, 4);
  const std::uint64_t now = old + 1 + draft.random.below(draft.random.one_in(2) ? 16 : kPage);
  draft.put(fde->at + 12, 4, now);
  draft.told =
      fmt::format("the FDE at {:#x} covers {:#x} bytes instead of {:#x}", fde->at, now, old);
  return true;
}

// Augmentation with the pointer to the LSDA, then instructions.
bool fde_rest(Draft& draft) {
  std::vector<Record> records;
  const Record* fde = any_record(draft, records, false);
  return fde != nullptr && fde->end - fde->at > 16 &&
         draft.disturb_byte({fde->at + 16, fde->end}, "FDE's augmentation or instructions");
}

bool lsda_pointer(Draft& draft) {
  std::vector<Record> records;
  const Record* fde = any_record(draft, records, false);
  if (fde == nullptr || fde->end - fde->at < 21 || draft.get(fde->at + 16, 1) < 4) return false;
  return draft.disturb(fde->at + 17, 4, "pointer to the LSDA");
}

bool cie_rest(Draft& draft) {
  std::vector<Record> records;
  const Record* cie = any_record(draft, records, true);
  return cie != nullptr && draft.disturb_byte({cie->at, cie->end}, "CIE");
}

// An FDE's instructions are another's of the same length.
bool borrowed_fde(Draft& draft) {
  std::vector<Record> records;
  const Record* a = any_record(draft, records, false);
  if (a == nullptr) return false;
  const auto all = read_records(draft);
  const Record& b = all[draft.random.below(all.size())];
  if (b.is_cie || b.at == a->at || b.end - b.at != a->end - a->at || a->end - a->at <= 16)
    return false;
  const Bytes rest = draft.copy(b.at + 16, b.end - b.at - 16);
  if (rest == draft.copy(a->at + 16, rest.size())) return false;
  draft.write(a->at + 16, rest);
  draft.told = fmt::format("the FDE at {:#x} has the instructions of {:#x}", a->at, b.at);
  return true;
}

bool exception_table(Draft& draft) {
  const Section* table = draft.file.section(".gcc_except_table");
  return table != nullptr && table->size.value != 0 &&
         draft.disturb_byte({table->offset.value, table->offset.value + table->size.value},
                            "exception table");
}

constexpr Kind kKinds[] = {
    {"head of .eh_frame_hdr", table_head},
    {"row of .eh_frame_hdr", table_row},
    {"rows of .eh_frame_hdr swapped", swapped_rows},
    {"row in a function", row_in_a_function},
    {"FDE field", fde_field},
    {"FDE longer", longer_fde},
    {"FDE augmentation or instructions", fde_rest},
    {"LSDA pointer", lsda_pointer},
    {"FDE with another's instructions", borrowed_fde},
    {"CIE", cie_rest},
    {"exception table", exception_table},
};

}  // namespace

std::span<const Kind> unwind_kinds() { return kKinds; }

}  // namespace mutate
