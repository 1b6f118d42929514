// Code that the rewrite wrote, what lies between sections, and bytes of every other kind.
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/code/decoder.hpp"
#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

using reprobe::FileOffset;
using reprobe::Size;
using reprobe::VirtAddr;

// Offset in the file of an executable range, and its address.
struct Code {
  Span span;
  std::uint64_t address{};
};

// What the rewrite changed in executable segments.
std::vector<Code> changed_code(const Draft& draft) {
  std::vector<Code> found;
  for (const Segment& load : draft.file.segments()) {
    if (load.type != reprobe::PT_LOAD || (load.flags & 1) == 0) continue;
    for (const Span& span : draft.changed) {
      const std::uint64_t begin = std::max(span.begin, load.offset.value);
      const std::uint64_t end = std::min(span.end, load.offset.value + load.filesz.value);
      if (begin < end)
        found.push_back({{begin, end}, load.vaddr.value + begin - load.offset.value});
    }
  }
  return found;
}

bool any_code(Draft& draft, Code& code) {
  const auto all = changed_code(draft);
  if (all.empty()) return false;
  code = all[draft.random.below(all.size())];
  return true;
}

bool code_byte(Draft& draft) {
  Code code;
  return any_code(draft, code) && draft.disturb_byte(code.span, "code");
}

// One bit of one byte: another register, operand or condition.
bool code_bit(Draft& draft) {
  Code code;
  if (!any_code(draft, code)) return false;
  const std::uint64_t at = code.span.begin + draft.random.below(code.span.size());
  const std::uint64_t old = draft.get(at, 1);
  draft.put(at, 1, old ^ (std::uint64_t{1} << draft.random.below(8)));
  draft.told = fmt::format("code at {:#x}: {:#x} is {:#x}", code.address + at - code.span.begin,
                           old, draft.get(at, 1));
  return true;
}

struct Placed {
  std::uint64_t at{};
  std::uint64_t size{};
  reprobe::Instruction code;
};

std::vector<Placed> decode(const Draft& draft, const Code& code) {
  std::vector<Placed> found;
  const auto decoder = reprobe::Decoder::open(draft.file.header(), false);
  const std::uint64_t limit = std::min<std::uint64_t>(code.span.size(), 4096);
  for (std::uint64_t done = 0; decoder && done < limit;) {
    const Bytes bytes =
        draft.copy(code.span.begin + done, std::min<std::uint64_t>(15, code.span.size() - done));
    const auto instruction = decoder->decode(bytes, VirtAddr{code.address + done});
    if (!instruction || instruction->size.value == 0) break;
    found.push_back({code.span.begin + done, instruction->size.value, *instruction});
    done += instruction->size.value;
  }
  return found;
}

// An instruction gives way to another one of the same length, or to the one beside it.
bool other_instruction(Draft& draft) {
  Code code;
  if (!any_code(draft, code)) return false;
  const auto all = decode(draft, code);
  if (all.size() < 2) return false;
  const Placed& a = all[draft.random.below(all.size())];
  const Placed& b = all[draft.random.below(all.size())];
  const Bytes text = draft.copy(b.at, b.size);
  if (a.size != b.size || text == draft.copy(a.at, a.size)) return false;
  draft.write(a.at, text);
  draft.told = fmt::format("the instruction at offset {:#x} is that of {:#x}", a.at, b.at);
  return true;
}

bool swapped_instructions(Draft& draft) {
  Code code;
  if (!any_code(draft, code)) return false;
  const auto all = decode(draft, code);
  if (all.size() < 2) return false;
  const std::size_t i = draft.random.below(all.size() - 1);
  const Bytes a = draft.copy(all[i].at, all[i].size),
              b = draft.copy(all[i + 1].at, all[i + 1].size);
  if (a == b) return false;
  draft.write(all[i].at, b);
  draft.write(all[i].at + b.size(), a);
  draft.told =
      fmt::format("the instructions at offset {:#x} and behind it change places", all[i].at);
  return true;
}

// The last four bytes of a jump, a call or an address of data; off by a little.
bool displacement(Draft& draft) {
  Code code;
  if (!any_code(draft, code)) return false;
  auto all = decode(draft, code);
  std::erase_if(all, [](const Placed& placed) { return placed.size < 5; });
  if (all.empty()) return false;
  const Placed& placed = all[draft.random.below(all.size())];
  const std::uint64_t at = placed.at + placed.size - 4;
  const std::uint64_t old = draft.get(at, 4);
  const std::uint64_t step = 1 + draft.random.below(draft.random.one_in(2) ? 2 : 32);
  draft.put(at, 4, draft.random.one_in(2) ? old + step : old - step);
  draft.told =
      fmt::format("displacement at offset {:#x}: {:#x} is {:#x}", at, old, draft.get(at, 4));
  return true;
}

// nop, int3, ret and a two-byte jump in place of what stands there.
bool short_code(Draft& draft) {
  Code code;
  if (!any_code(draft, code)) return false;
  const std::uint64_t at = code.span.begin + draft.random.below(code.span.size());
  const std::uint8_t values[] = {0x90, 0xcc, 0xc3, 0xeb, 0xf4};
  const std::uint64_t old = draft.get(at, 1);
  draft.put(at, 1, values[draft.random.below(5)]);
  draft.told = fmt::format("code at offset {:#x}: {:#x} is {:#x}", at, old, draft.get(at, 1));
  return old != draft.get(at, 1);
}

// What the rewrite changed is as before, in part.
bool as_before(Draft& draft) {
  const Span* span = draft.pick(draft.changed);
  const auto& source = draft.before.source();
  if (span == nullptr || span->end > source.size()) return false;
  Span part = *span;
  if (part.size() > 1 && draft.random.one_in(2)) part.begin += draft.random.below(part.size());
  const auto old = source.slice(FileOffset{part.begin}, Size{part.size()}, "the original");
  if (!old || std::ranges::equal(*old, draft.copy(part.begin, part.size()))) return false;
  draft.write(part.begin, *old);
  draft.told = fmt::format("bytes {:#x} to {:#x} are as before", part.begin, part.end);
  return true;
}

// Bytes of the file that no section and no header table owns.
std::vector<Span> gaps(const Draft& draft) {
  const auto& header = draft.file.header();
  std::vector<Span> taken{
      {0, draft.is64() ? 64U : 52U},
      {header.phoff.value, header.phoff.value + header.phnum * header.phentsize},
      {header.shoff.value, header.shoff.value + header.shnum * header.shentsize}};
  for (const Section& section : draft.file.sections()) {
    if (!section.nobits() && section.size.value != 0)
      taken.push_back({section.offset.value, section.offset.value + section.size.value});
  }
  std::ranges::sort(taken, {}, &Span::begin);
  std::vector<Span> found;
  std::uint64_t at = 0;
  for (const Span& span : taken) {
    if (span.begin > at)
      found.push_back({at, std::min<std::uint64_t>(span.begin, draft.bytes.size())});
    at = std::max(at, span.end);
  }
  if (at < draft.bytes.size()) found.push_back({at, draft.bytes.size()});
  return found;
}

bool padding(Draft& draft) {
  const auto found = gaps(draft);
  return !found.empty() && draft.disturb_byte(found[draft.random.below(found.size())], "padding");
}

bool changed_byte(Draft& draft) {
  const Span* span = draft.pick(draft.changed);
  return span != nullptr && draft.disturb_byte(*span, "byte that the rewrite wrote");
}

// Around what the rewrite wrote.
bool near_byte(Draft& draft) {
  const Span* span = draft.pick(draft.changed);
  if (span == nullptr) return false;
  const std::uint64_t begin = span->begin - std::min<std::uint64_t>(span->begin, 32);
  return draft.disturb_byte({begin, std::min<std::uint64_t>(span->end + 32, draft.bytes.size())},
                            "byte near what the rewrite wrote");
}

bool any_byte(Draft& draft) { return draft.disturb_byte({0, draft.bytes.size()}, "byte"); }

bool byte_of_a_section(Draft& draft) {
  const Section* section = draft.any_section();
  if (section == nullptr || section->nobits()) return false;
  return draft.disturb_byte({section->offset.value, section->offset.value + section->size.value},
                            section->name);
}

bool appended(Draft& draft) {
  const std::uint64_t sizes[] = {1, 8, 64, kPage};
  Bytes bytes(sizes[draft.random.below(4)]);
  if (draft.random.one_in(2)) bytes.back() = std::byte{0x5a};
  draft.append(bytes, 1);
  draft.told = fmt::format("{} bytes more", bytes.size());
  return true;
}

bool cut(Draft& draft) {
  const std::uint64_t less =
      1 + draft.random.below(draft.random.one_in(2) ? 64 : draft.bytes.size());
  const auto kept = draft.bytes.size() - std::min<std::uint64_t>(less, draft.bytes.size());
  draft.bytes.erase(draft.bytes.begin() + static_cast<std::ptrdiff_t>(kept), draft.bytes.end());
  draft.told = fmt::format("{} bytes less", less);
  return true;
}

// Bytes of one place stand in another.
bool copied_bytes(Draft& draft) {
  const Span* to = draft.pick(draft.changed);
  if (to == nullptr) return false;
  const std::uint64_t size = std::min<std::uint64_t>(to->size(), 1 + draft.random.below(64));
  const Bytes text = draft.copy(draft.random.below(draft.bytes.size() - size), size);
  if (text.empty() || text == draft.copy(to->begin, size)) return false;
  draft.write(to->begin, text);
  draft.told = fmt::format("{} bytes of another place at {:#x}", size, to->begin);
  return true;
}

constexpr Kind kKinds[] = {
    {"byte of new code", code_byte},
    {"bit of new code", code_bit},
    {"instruction replaced", other_instruction},
    {"instructions swapped", swapped_instructions},
    {"displacement", displacement},
    {"nop, int3 or jump in new code", short_code},
    {"change taken back", as_before},
    {"padding", padding},
    {"byte that the rewrite wrote", changed_byte},
    {"byte near what the rewrite wrote", near_byte},
    {"any byte", any_byte},
    {"byte of a section", byte_of_a_section},
    {"bytes behind the file", appended},
    {"file cut", cut},
    {"bytes copied", copied_bytes},
};

}  // namespace

std::span<const Kind> byte_kinds() { return kKinds; }

}  // namespace mutate
