#include "libprobe/tracers/kernel.hpp"

#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {
namespace {

constexpr Size kPrefixesLooked{4};  // more prefixes than any nop of a compiler has

// x86 is_prefix_bad(): a segment override or lock makes the kernel refuse the instruction. Of a
// site on the one-byte nop before a longer one only that byte counts.
bool has_bad_prefix(ByteView bytes) {
  for (const std::byte byte : bytes) {
    switch (std::to_integer<unsigned>(byte)) {
      case 0x26:
      case 0x2e:
      case 0x36:
      case 0x3e:
      case 0xf0:
        return true;
      case 0x64:
      case 0x65:
      case 0x66:
      case 0x67:
      case 0xf2:
      case 0xf3:
        continue;
      default:
        return false;
    }
  }
  return false;
}

// UPROBE_SWBP_INSN_SIZE: offsets must be a multiple of it (uprobe_register).
std::uint64_t breakpoint_size(std::uint16_t machine) {
  switch (machine) {
    case EM_AARCH64:
    case EM_ARM:
    case EM_PPC64:
      return 4;
    case EM_S390:
    case EM_RISCV:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

std::string_view uprobe_fault(const Facts& facts, std::size_t index) {
  const Probe& probe = facts.probes[index];
  const std::uint16_t machine = facts.file.header().machine;
  if (machine == EM_X86_64 || machine == EM_386) {
    return has_bad_prefix(facts.file.bytes_at(probe.site, kPrefixesLooked)) ? reason::prefixed_nop
                                                                            : "";
  }
  // ARM arch_uprobe_analyze_insn: "Thumb not supported yet".
  if (machine == EM_ARM && probe.facts.function && probe.facts.function->thumb) {
    return reason::thumb;
  }
  return probe.site.value % breakpoint_size(machine) != 0 ? reason::misaligned : "";
}

bool refuses_counter(std::uint64_t file_offset) { return file_offset % 2 != 0; }

std::string_view field_fault(const Facts& facts, std::size_t probe) {
  const SemaphoreFacts& counter = facts.semaphores[probe];
  if (counter.copied) return reason::semaphore_copied;
  if (counter.symbol && *counter.symbol != counter.address) return reason::semaphore_field;
  return counter.address.value == 0 && counter.symbol_undefined ? reason::semaphore_field : "";
}

std::string_view counter_fault(const Facts& facts, std::size_t probe, std::uint64_t file_offset) {
  const SemaphoreFacts& counter = facts.semaphores[probe];
  if (!counter.offset) return reason::semaphore_not_in_file;
  // valid_ref_ctr_vma(): a private mapping that is writable. RELRO is not, once the program runs.
  if (!counter.writable || counter.in_relro) return reason::semaphore_read_only;
  if (file_offset != counter.offset->value) return reason::semaphore_address;
  // delayed_ref_ctr_inc() raises the counter in the first mapping that fits.
  return counter.mapped_before != nullptr ? reason::semaphore_page : "";
}

}  // namespace reprobe::consumers
