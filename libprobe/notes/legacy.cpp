#include "libprobe/notes/legacy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/elf/limits.hpp"
#include "libprobe/notes/arguments.hpp"
#include "libprobe/notes/relocate.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kSlot = 8;  // every word stands at a multiple of it
// Longer than any macro's text; records of a hostile file can all point at one long string.
constexpr std::uint64_t kLongestText = 4096;
constexpr std::size_t kMostFindings = 100;

struct Magic {
  std::uint32_t value;
  LegacyForm form;
};
constexpr std::array kMagics{
    Magic{0x31425250, LegacyForm::uprobe1}, Magic{0x32425250, LegacyForm::kprobe1},
    Magic{0x33425250, LegacyForm::utrace1}, Magic{0x32425055, LegacyForm::uprobe2},
    Magic{0x3242504b, LegacyForm::kprobe2}};
// Some headers state the number of the call where the magic number of a probe without arguments
// belongs: 0xbead is no system call, 0x6c is getegid on x86-64.
constexpr std::array kCallNumbers{Magic{0xbead, LegacyForm::utrace1},
                                  Magic{0x6c, LegacyForm::kprobe1}};

std::uint64_t rounded(std::uint64_t value, std::uint64_t align) {
  return (value + align - 1) / align * align;
}

// What the dynamic linker writes into one section, by address.
class LoadedWords {
 public:
  LoadedWords(const ElfFile& file, const Section& section) : file_(file) {
    if (!section.allocated()) return;
    const auto symbols = dynamic_symbols();
    for (const DynamicTable& table : dynamic_tables(file)) {
      for_each_relocation(file, table, [&](const DynamicRelocation& relocation) {
        if (!section.contains(relocation.place)) return;
        values_[relocation.place.value] = value_of(relocation, symbols ? &*symbols : nullptr);
      });
    }
  }

  struct Value {
    bool known{};
    bool in_place{};  // the bytes of the file are added
    std::uint64_t value{};
  };
  [[nodiscard]] const Value* at(std::uint64_t address) const {
    const auto found = values_.find(address);
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  [[nodiscard]] std::optional<SymbolTable> dynamic_symbols() const {
    for (const Section& section : file_.sections()) {
      if (section.type != SHT_DYNSYM) continue;
      if (auto table = file_.symbol_table(section)) return std::move(*table);
    }
    return std::nullopt;
  }

  [[nodiscard]] Value value_of(const DynamicRelocation& relocation,
                               const SymbolTable* symbols) const {
    const std::uint16_t machine = file_.header().machine;
    const bool in_place = !relocation.addend;
    const auto addend = static_cast<std::uint64_t>(relocation.addend.value_or(0));
    if (relocation.relr) return {true, true, 0};
    if (relocation.type == 0) return {true, true, 0};  // R_*_NONE on every machine
    if (relocation.type == relative_relocation(machine)) return {true, in_place, addend};
    if (absolute_width(machine, relocation.type) != file_.header().word() || symbols == nullptr) {
      return {};
    }
    const Symbol symbol = symbols->at(relocation.symbol);
    if (!symbol.in_section() || symbol.type == STT_TLS || symbol.type == STT_GNU_IFUNC) return {};
    return {true, in_place, symbol.value.value + addend};
  }

  const ElfFile& file_;
  std::map<std::uint64_t, Value> values_;
};

class LegacyReader {
 public:
  LegacyReader(const ElfFile& file, const Section& section, ByteView bytes)
      : file_(file),
        section_(section),
        bytes_(bytes),
        loaded_(file, section),
        budget_(file.source().size()) {}

  LegacyScan run() {
    for (std::uint64_t at = 0; at + 4 <= bytes_.size();) {
      const std::size_t used = scan_.used.size();
      const auto read = record_at(at);
      if (!read) {
        scan_.used.resize(used);
        at += 4;
        continue;
      }
      scan_.records.push_back(*read);
      at = rounded(read->end, 4);
    }
    if (!scan_.records.empty() || !scan_.findings.empty()) scan_.section = &section_;
    std::ranges::sort(scan_.used);
    return std::move(scan_);
  }

 private:
  [[nodiscard]] std::uint32_t word32(std::uint64_t at) const {
    return static_cast<std::uint32_t>(
        load_uint(bytes_, static_cast<std::size_t>(at), 4, file_.header().order));
  }

  std::optional<LegacyRecord> record_at(std::uint64_t at) {
    const std::uint32_t value = word32(at);
    for (const Magic& magic : kMagics) {
      const bool relative = value == (magic.value | kSelfRelative);
      if (value != magic.value && !relative) continue;
      LegacyRecord record;
      record.form = magic.form;
      record.self_relative = relative;
      record.offset = at;
      const bool second = magic.form == LegacyForm::uprobe2 || magic.form == LegacyForm::kprobe2;
      const std::string why = second ? read_second(record) : read_first(record);
      if (why.empty()) return record;
      add_finding(at, value, why);
      return std::nullopt;
    }
    for (const Magic& number : kCallNumbers) {
      const bool relative = value == (number.value | kSelfRelative);
      if (value != number.value && !relative) continue;
      LegacyRecord record;
      record.form = number.form;
      record.self_relative = relative;
      record.offset = at;
      // The number alone says little: the name stands right before it.
      if (!read_first(record).empty() || record.count != 0) return std::nullopt;
      const std::uint64_t name = record.words.front().value.value - section_.addr.value;
      if (rounded(name + record.name.size() + 1, 4) != at) return std::nullopt;
      return record;
    }
    return std::nullopt;
  }

  // Form 1: the name, the magic number, then the name's address and one more word.
  std::string read_first(LegacyRecord& record) {
    const std::uint64_t word = file_.header().word();
    const std::uint64_t name = rounded(record.offset + 4, kSlot);
    const std::uint64_t second = name + kSlot;
    // SystemTap 0.9.5 wrote words of 32 bits in programs of 64, in slots of 8 bytes: what pads the
    // slot is missing behind the last. Its section is not loaded.
    const bool cut = word == kSlot && !section_.allocated() && second + 4 == bytes_.size() &&
                     file_.header().order == std::endian::little;
    record.end = second + (cut ? 4 : word);
    if (record.end > bytes_.size()) return "the section ends in it";
    const auto text = text_at(add_word(record, name));
    if (!text) return "its name is no text of the section";
    record.name = *text;
    if (record.name.empty()) return "it has no name";
    if (cut && record.form != LegacyForm::uprobe1) return "the section ends in it";
    if (cut) {
      record.location =
          VirtAddr{load_uint(bytes_, static_cast<std::size_t>(second), 4, std::endian::little)};
      record.words.push_back({second, record.location});
    } else if (record.form == LegacyForm::uprobe1) {
      record.location = add_word(record, second);
    } else {
      record.count = plain(second);
    }
    if (record.unresolved) return "";
    use(record.offset, record.end + 4);
    use_text(record.words.front().value, record.name);
    return "";
  }

  // Form 2: the magic number and six words, or seven with counters; then the texts.
  std::string read_second(LegacyRecord& record) {
    const std::uint64_t at = record.offset, word = file_.header().word();
    if (at % kSlot != 0) return "it is not aligned to 8";
    record.end = at + 5 * kSlot + word;
    if (record.end > bytes_.size()) return "the section ends in it";
    const VirtAddr name = add_word(record, at + kSlot), provider = add_word(record, at + 2 * kSlot);
    const auto name_text = text_at(name), provider_text = text_at(provider);
    if (!name_text || !provider_text) return "its name or provider is no text of the section";
    record.name = *name_text;
    record.provider = *provider_text;
    if (record.name.empty() || record.provider.empty()) return "it has no name or no provider";
    record.count = plain(at + 3 * kSlot);
    use_text(name, record.name);
    use_text(provider, record.provider);
    const std::uint64_t here = section_.addr.value + at;
    bool with_counter = false;
    if (record.form == LegacyForm::uprobe2) {
      const VirtAddr operands = add_word(record, at + 4 * kSlot);
      const auto text = text_at(operands);
      if (!text) return "its arguments are no text of the section";
      record.operands = *text;
      use_text(operands, record.operands);
      record.location = add_word(record, at + 5 * kSlot);
      const std::uint64_t texts = operands.value - here;
      if (texts != 6 * kSlot && texts != 7 * kSlot) return "its arguments do not follow it";
      with_counter = texts == 7 * kSlot;
    } else {
      with_counter = call_has_counter(record, provider.value - here);
    }
    if (with_counter) {
      record.end += kSlot;
      if (record.end > bytes_.size()) return "the section ends in it";
      record.semaphore = add_word(record, at + 6 * kSlot);
      if (record.semaphore.value != 0 && section_.contains(record.semaphore)) {
        const std::uint64_t counter = record.semaphore.value - section_.addr.value;
        use(counter, counter + 2);
      }
    }
    use(at, rounded(record.end, kSlot));
    return "";
  }

  // A call's record does not say where its texts begin: an empty text of arguments stands before
  // the provider, or none. `texts`: from the record to the provider.
  [[nodiscard]] bool call_has_counter(const LegacyRecord& record, std::uint64_t texts) const {
    const std::uint64_t at = record.offset + 6 * kSlot;
    if (texts >= 8 * kSlot) return true;
    if (texts != 7 * kSlot || at + kSlot > bytes_.size()) return false;
    LegacyRecord trial = record;
    const VirtAddr counter = word_at(trial, at);
    const Section* section = file_.section_containing(counter);
    return counter.value != 0 && section != nullptr && (section->flags & SHF_WRITE) != 0;
  }

  // In ELF32 of big-endian order the word stands behind four bytes of zeros, where the header
  // wrote them: the whole is then readable as 64 bits.
  [[nodiscard]] std::uint64_t place_of_word(std::uint64_t slot) const {
    const ElfHeader& header = file_.header();
    if (header.is64 || header.order == std::endian::little) return slot;
    if (slot + kSlot > bytes_.size()) return slot;
    const std::uint64_t address = section_.addr.value + slot;
    if (loaded_.at(address) != nullptr) return slot;
    if (loaded_.at(address + 4) != nullptr) return slot + 4;
    return word32(slot) == 0 ? slot + 4 : slot;
  }

  [[nodiscard]] std::uint64_t plain(std::uint64_t slot) const {
    return load_uint(bytes_, static_cast<std::size_t>(place_of_word(slot)), file_.header().word(),
                     file_.header().order);
  }

  // The address that the word at the offset holds once the file is loaded at 0.
  [[nodiscard]] VirtAddr word_at(LegacyRecord& record, std::uint64_t place) const {
    const unsigned word = file_.header().word();
    std::uint64_t value =
        load_uint(bytes_, static_cast<std::size_t>(place), word, file_.header().order);
    const std::uint64_t address = section_.addr.value + place;
    if (record.self_relative) {
      if (value != 0) value += address;
    } else if (const auto* loaded = loaded_.at(address)) {
      record.unresolved = record.unresolved || !loaded->known;
      value = loaded->value + (loaded->in_place ? value : 0);
    }
    return VirtAddr{word == 8 ? value : value & 0xffffffffU};
  }

  VirtAddr add_word(LegacyRecord& record, std::uint64_t slot) {
    const std::uint64_t place = place_of_word(slot);
    record.end = std::max(record.end, place + file_.header().word());
    const VirtAddr value = word_at(record, place);
    record.words.push_back({place, value});
    return value;
  }

  std::optional<std::string> text_at(VirtAddr address) {
    if (!section_.contains(address)) return std::nullopt;
    const std::uint64_t offset = address.value - section_.addr.value;
    if (offset >= bytes_.size()) return std::nullopt;
    const std::uint64_t length = std::min<std::uint64_t>(bytes_.size() - offset, kLongestText);
    const std::string_view text =
        as_text(bytes_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(length)));
    const auto end = text.find('\0');
    if (end == std::string_view::npos) return std::nullopt;
    return budget_.take(text.substr(0, end));
  }

  void use(std::uint64_t begin, std::uint64_t end) {
    scan_.used.emplace_back(begin, std::min<std::uint64_t>(end, bytes_.size()));
  }
  void use_text(VirtAddr address, std::string_view text) {
    const std::uint64_t begin = address.value - section_.addr.value;
    use(begin, begin + text.size() + 1);
  }

  void add_finding(std::uint64_t at, std::uint32_t value, const std::string& why) {
    if (scan_.findings.size() >= kMostFindings) return;
    Finding finding;
    finding.rule = "legacy-unreadable";
    finding.severity = Severity::warning;
    finding.note_offset = section_.offset.value + at;
    finding.message =
        fmt::format("{}+{:#x}: {:#010x} begins a record of SystemTap up to 1.3, and {}",
                    kProbesSection, at, value, why);
    scan_.findings.push_back(std::move(finding));
  }

  const ElfFile& file_;
  const Section& section_;
  ByteView bytes_;
  LoadedWords loaded_;
  TextBudget budget_;
  LegacyScan scan_;
};

}  // namespace

LegacyScan scan_legacy(const ElfFile& file) {
  const std::uint16_t type = file.header().type;
  const Section* section = file.section(kProbesSection);
  if ((type != ET_EXEC && type != ET_DYN) || section == nullptr) return {};
  const auto bytes = file.contents(*section);
  if (!bytes || (section->flags & SHF_COMPRESSED) != 0) return {};
  return LegacyReader(file, *section, *bytes).run();
}

std::uint32_t magic_of(LegacyForm form) {
  return std::ranges::find(kMagics, form, &Magic::form)->value;
}

std::string_view to_string(LegacyForm form) {
  switch (form) {
    case LegacyForm::uprobe1:
      return "uprobe-1";
    case LegacyForm::kprobe1:
      return "kprobe-1";
    case LegacyForm::utrace1:
      return "utrace-1";
    case LegacyForm::uprobe2:
      return "uprobe-2";
    case LegacyForm::kprobe2:
      break;
  }
  return "kprobe-2";
}

std::optional<std::string> note_arguments(const LegacyRecord& record, const ElfHeader& header) {
  std::string text;
  const auto operands = parse_arguments(record.operands, header.machine);
  if (operands.size() != record.count) return std::nullopt;
  for (const Argument& operand : operands) {
    // A size would be the operand's own: these never have one.
    if (operand.size || operand.operand.empty()) return std::nullopt;
    text += fmt::format("{}-{}@{}", text.empty() ? "" : " ", header.word(), operand.operand);
  }
  return text;
}

}  // namespace reprobe
