#include "libprobe/probes/semaphore.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "libprobe/plan/undo.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kSemaphoreBytes = 2;
// The smallest page of every machine with uprobes; with larger pages more is shared, never less.
constexpr std::uint64_t kPage = 4096;
constexpr std::string_view kSuffix = "_semaphore";
// Longer ones are not looked for: a hostile table can name one long string a million times.
constexpr std::size_t kLongestSymbol = 512;

std::uint64_t page_of(std::uint64_t value) { return value / kPage; }

// R_*_COPY of the processor supplements; 0 where it is not known.
std::uint32_t copy_relocation(std::uint16_t machine) {
  switch (machine) {
    case EM_386:
    case EM_X86_64:
      return 5;
    case EM_AARCH64:
      return 1024;
    case EM_ARM:
      return 20;
    case EM_PPC64:
      return 19;
    case EM_S390:
      return 9;
    case EM_RISCV:
      return 4;
    default:
      return 0;
  }
}

bool holds_counter(std::uint64_t address, std::uint64_t start, std::uint64_t size) {
  return in_range(address, start, size) && size - (address - start) >= kSemaphoreBytes;
}

// Tables may overlap in a hostile file: together no more than the file's size of them is read.
std::vector<const Section*> symbol_tables(const ElfFile& file) {
  std::vector<const Section*> tables;
  std::uint64_t budget = file.source().size();
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols()) continue;
    if (section.size.value > budget) continue;
    budget -= section.size.value;
    tables.push_back(&section);
  }
  return tables;
}

// The symbols that could be the probes' counters, by name.
class SemaphoreSymbols {
 public:
  SemaphoreSymbols(const ElfFile& file, const ProbeFile& probes) {
    for (const Probe& probe : probes.probes) {
      std::string name = name_of(probe.note);
      if (name.size() <= kLongestSymbol) found_.try_emplace(std::move(name));
    }
    if (found_.empty()) return;
    for (const Section* section : symbol_tables(file)) {
      if (const auto table = file.symbol_table(*section)) read(*table);
    }
  }

  void tell(const Note& note, SemaphoreFacts& facts) const {
    const auto found = found_.find(name_of(note));
    if (found == found_.end()) return;
    const Found& symbol = found->second;
    facts.symbol_ambiguous = symbol.differ;
    if (!symbol.differ) facts.symbol = symbol.address;
    facts.symbol_undefined = symbol.undefined && !symbol.address;
  }

 private:
  struct Found {
    std::optional<VirtAddr> address;
    bool differ{};
    bool undefined{};
  };

  static std::string name_of(const Note& note) {
    return note.provider + "_" + note.name + std::string(kSuffix);
  }

  void read(const SymbolTable& table) {
    for (std::uint32_t i = 1; i < table.size(); ++i) {
      const Symbol symbol = table.at(i);
      if (symbol.type != STT_NOTYPE && symbol.type != STT_OBJECT) continue;
      const std::string_view name = table.name(symbol);
      if (name.size() > kLongestSymbol || !name.ends_with(kSuffix)) continue;
      const auto found = found_.find(std::string(name));
      if (found != found_.end()) add(symbol, found->second);
    }
  }

  static void add(const Symbol& symbol, Found& found) {
    if (symbol.shndx == SHN_UNDEF) found.undefined = true;
    if (!symbol.in_section()) return;
    found.differ = found.differ || (found.address && *found.address != symbol.value);
    found.address = symbol.value;
  }

  std::unordered_map<std::string, Found> found_;
};

// Addresses that R_*_COPY relocations fill.
std::unordered_set<std::uint64_t> copied_addresses(const ElfFile& file) {
  std::unordered_set<std::uint64_t> copied;
  const std::uint32_t copy = copy_relocation(file.header().machine);
  if (copy == 0) return copied;
  std::uint64_t budget = file.source().size();  // tables may overlap in a hostile file
  for (const Section& section : file.sections()) {
    if (!section.holds_relocations()) continue;
    if (!section.allocated() || section.size.value > budget) continue;
    budget -= section.size.value;
    const auto relocations = file.relocations(section);
    if (!relocations) continue;
    for (const Relocation& relocation : *relocations) {
      if (relocation.type == copy) copied.insert(relocation.offset.value);
    }
  }
  return copied;
}

// The segments that decide about pages, picked once: a file can state very many.
struct Pages {
  std::vector<const Segment*> writable;  // PT_LOAD with PF_W and bytes of the file
  std::vector<const Segment*> relro;

  explicit Pages(const ElfFile& file) {
    for (const Segment& segment : file.segments()) {
      if (segment.type == PT_GNU_RELRO) relro.push_back(&segment);
      const bool maps_file = segment.type == PT_LOAD && segment.filesz.value != 0;
      if (maps_file && (segment.flags & PF_W) != 0) writable.push_back(&segment);
    }
    // More than any linker makes: then nothing is said about pages.
    constexpr std::size_t kMany = 64;
    if (writable.size() > kMany) writable.clear();
    if (relro.size() > kMany) relro.clear();
  }
};

// _dl_protect_relro rounds both ends down to pages.
bool in_relro(const Pages& pages, VirtAddr address) {
  return std::ranges::any_of(pages.relro, [&](const Segment* relro) {
    const auto end = checked_add(relro->vaddr.value, relro->memsz.value);
    return end && page_of(address.value) >= page_of(relro->vaddr.value) &&
           page_of(address.value) < page_of(*end);
  });
}

// Both the kernel and ld.so map whole pages, in the order of the program headers.
const Segment* mapped_before(const Pages& pages, const Segment& own, FileOffset offset) {
  for (const Segment* other : pages.writable) {
    if (other->index >= own.index) return nullptr;
    const auto last = checked_add(other->offset.value, other->filesz.value - 1);
    if (last && page_of(offset.value) >= page_of(other->offset.value) &&
        page_of(offset.value) <= page_of(*last)) {
      return other;
    }
  }
  return nullptr;
}

// The .probes that bcc takes (bcc_elf.c, listprobes): the first behind the first executable
// section.
const Section* bcc_probes(const ElfFile& file) {
  const auto sections = file.sections();
  auto at = std::ranges::find_if(sections,
                                 [](const Section& s) { return (s.flags & SHF_EXECINSTR) != 0; });
  at = at == sections.end() ? sections.begin() : std::next(at);
  at = std::find_if(at, sections.end(), [](const Section& s) { return s.name == kProbesSection; });
  return at == sections.end() ? nullptr : &*at;
}

SemaphoreFacts facts_of(const ElfFile& file, const Section* probes, const Section* bcc,
                        const Pages& pages, VirtAddr address) {
  SemaphoreFacts facts;
  facts.address = address;
  if (address.value == 0) return facts;
  facts.even = address.value % kSemaphoreBytes == 0;
  facts.section = file.section_containing(address);
  facts.segment = file.load_segment(address);
  if (probes != nullptr && !probes->nobits()) {
    facts.in_probes = holds_counter(address.value, probes->addr.value, probes->size.value);
  }
  if (facts.segment == nullptr) return facts;
  const Segment& segment = *facts.segment;
  facts.writable = (segment.flags & PF_W) != 0;
  facts.executable = (segment.flags & PF_X) != 0;
  facts.in_relro = in_relro(pages, address);
  // .bss can begin inside a segment's last page of the file; its bytes are not the file's.
  const bool nobits = facts.section != nullptr && facts.section->nobits();
  if (nobits || !holds_counter(address.value, segment.vaddr.value, segment.filesz.value)) {
    return facts;
  }
  facts.offset = FileOffset{address.value - segment.vaddr.value + segment.offset.value};
  facts.mapped_before = mapped_before(pages, segment, *facts.offset);
  facts.bcc_finds_it =
      bcc != nullptr && address.value - bcc->addr.value + bcc->offset.value == facts.offset->value;
  return facts;
}

}  // namespace

std::vector<SemaphoreFacts> read_semaphores(const ElfFile& file, const ProbeFile& probes) {
  std::vector<SemaphoreFacts> all;
  all.reserve(probes.probes.size());
  if (file.header().type == ET_REL) {
    for (const Probe& probe : probes.probes) {
      all.emplace_back().address = probe.semaphore;
    }
    return all;
  }
  const SemaphoreSymbols symbols(file, probes);
  const std::unordered_set<std::uint64_t> copied = copied_addresses(file);
  const Pages pages(file);
  const Section* section = file.section(kProbesSection);
  const Section* bcc = bcc_probes(file);
  const bool to_sites = file.section(kGuardsAtSite) != nullptr;
  for (const Probe& probe : probes.probes) {
    SemaphoreFacts facts = facts_of(file, section, bcc, pages, probe.semaphore);
    facts.copied = probe.semaphore.value != 0 && copied.contains(probe.semaphore.value);
    // Its checks look at the probe's site: the counter is not missing.
    const bool guarded = to_sites && probe.semaphore.value == 0;
    if (!guarded) symbols.tell(probe.note, facts);
    all.push_back(facts);
  }
  return all;
}

bool points_nowhere(const SemaphoreFacts& facts) {
  if (facts.address.value == 0) return false;
  if (facts.segment == nullptr) return true;
  return !facts.writable && (facts.section == nullptr || facts.section->executable());
}

namespace {

// Calls `use` with each symbol NAME_semaphore of a counter until it gives false.
template <typename Use>
void for_each_semaphore_symbol(const ElfFile& file, Use&& use) {
  std::optional<std::unordered_set<std::uint64_t>> copied;  // read where a symbol asks for it
  for (const Section* section : symbol_tables(file)) {
    const auto table = file.symbol_table(*section);
    if (!table) continue;
    for (std::uint32_t i = 1; i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      // Other kinds of semaphore are called so too, but no counter has another size.
      if (symbol.type != STT_OBJECT || symbol.size.value != kSemaphoreBytes) continue;
      const std::string_view name = table->name(symbol);
      if (!symbol.in_section() || !name.ends_with(kSuffix)) continue;
      // A copy relocation's: the probe, and its note, are the library's.
      if (!copied) copied = copied_addresses(file);
      if (!copied->contains(symbol.value.value) && !use(name, symbol.value)) return;
    }
  }
}

}  // namespace

bool has_semaphore_symbol(const ElfFile& file) {
  bool found = false;
  for_each_semaphore_symbol(file, [&](std::string_view, VirtAddr) { return !(found = true); });
  return found;
}

std::vector<SemaphoreSymbol> semaphore_symbols(const ElfFile& file) {
  std::vector<SemaphoreSymbol> symbols;
  std::unordered_set<std::uint64_t> known;
  for_each_semaphore_symbol(file, [&](std::string_view name, VirtAddr address) {
    if (name.size() <= kLongestSymbol && known.insert(address.value).second) {
      symbols.push_back({std::string(name), address});
    }
    return true;
  });
  return symbols;
}

}  // namespace reprobe
