#include "libprobe/audit/read_probes.hpp"

#include "libprobe/audit/facts.hpp"
#include "libprobe/audit/sled_origin.hpp"
#include "libprobe/audit/verdict.hpp"

namespace reprobe {
namespace {

// libbpf (parse_usdt_note) moves the location only where both bases are known: linkers that drop
// .stapsdt.base write 0 into the note.
VirtAddr moved(VirtAddr address, const Note& note, const ProbeFile& file, bool is64) {
  std::uint64_t distance = 0;
  if (file.base && file.base->value != 0 && note.base.value != 0) {
    distance = file.base->value - note.base.value;
  } else if (file.shift.proven) {
    distance = file.shift.distance;
  }
  const std::uint64_t result = address.value + distance;
  return VirtAddr{is64 ? result : result & 0xffffffffU};
}

bool writable(const ElfFile& file, VirtAddr address) {
  const Section* section = file.section_containing(address);
  return section != nullptr && (section->flags & SHF_WRITE) != 0;
}

// Consumers disagree about moving the counter (gdb does, libbpf does not): the address that is
// writable data decides; where neither is, the note's own.
VirtAddr semaphore_address(const ElfFile& file, const Note& note, const ProbeFile& probes) {
  if (note.semaphore.value == 0) return note.semaphore;
  const VirtAddr other = moved(note.semaphore, note, probes, file.header().is64);
  return other != note.semaphore && writable(file, other) ? other : note.semaphore;
}

// The notes with base, shift, sites, semaphores and arguments: no other fact, no verdict.
ProbeFile read_sites(const ElfFile& file, NoteScan scan) {
  ProbeFile result;
  result.scan = std::move(scan);
  if (file.header().type != ET_REL) {
    if (const Section* base = file.section(kBaseSection); base != nullptr) {
      result.base = base->addr;
    }
    if (!result.base) result.shift = find_shift(file, result.scan);
  }
  result.probes.reserve(result.scan.notes.size());
  for (const Note& note : result.scan.notes) {
    Probe probe;
    probe.note = note;
    probe.site = moved(note.location, note, result, file.header().is64);
    probe.semaphore = semaphore_address(file, note, result);
    probe.arguments = parse_arguments(note.arguments, file.header().machine);
    result.probes.push_back(std::move(probe));
  }
  return result;
}

ProbeFile judged(const ElfFile& file, NoteScan scan, const LinkObjects* objects) {
  ProbeFile result = read_sites(file, std::move(scan));
  gather_facts(file, result);
  judge(result, file.header());
  if (objects != nullptr) objects->judge(file, result);
  return result;
}

}  // namespace

ProbeFile read_probes(const ElfFile& file, const LinkObjects* objects) {
  ProbeFile result = judged(file, scan_notes(file), objects);
  if (const auto original = OriginalFile::of(file)) {
    take_origins(result, judged(original->elf(), scan_notes(original->elf()), objects));
  }
  return result;
}

std::optional<ProbeFile> read_other_sections(const ElfFile& file) {
  NoteScan scan = scan_other_sections(file);
  if (scan.notes.empty()) return std::nullopt;
  return judged(file, std::move(scan), nullptr);
}

}  // namespace reprobe
