// What is known about the counters of probes ("semaphores"): a tracer raises the u16 at the note's
// address, and the program reads it to know whether it is traced. The kernel raises it by file
// offset (uprobes.c, valid_ref_ctr_vma), so that where it lies decides whether that works.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

struct SemaphoreFacts {
  VirtAddr address;  // Probe::semaphore; 0: the note names no counter
  // Nothing below, up to `copied`, is set where address is 0.
  const Section* section{};  // holds it, by address; nullptr: none
  const Segment* segment{};  // the first PT_LOAD that holds it by p_memsz (libbpf find_elf_seg)
  // Where its two bytes stand in the file; nothing in .bss and outside of every segment.
  std::optional<FileOffset> offset;
  bool even{};        // the kernel refuses odd offsets (uprobe_register: -EINVAL)
  bool writable{};    // the segment is
  bool executable{};  // the segment is: libbpf refuses it
  bool in_probes{};   // its two bytes are inside the first section .probes
  // bcc's file offset (address - .probes.sh_addr + .probes.sh_offset; bcc_elf.c) is the right one:
  // in .probes, and in every section of the same segment.
  bool bcc_finds_it{};
  // ld.so makes its page read-only (PT_GNU_RELRO, whole pages as _dl_protect_relro counts).
  bool in_relro{};
  // A writable PT_LOAD before its own that maps the same page of the file: the kernel raises the
  // copy of the counter in the first such mapping. nullptr: none.
  const Segment* mapped_before{};
  // A R_*_COPY relocation fills it: the counter belongs to another module, and nobody raises this.
  bool copied{};

  // The symbol PROVIDER_NAME_semaphore of .symtab or .dynsym.
  std::optional<VirtAddr> symbol;  // where it is defined; nothing where several differ
  bool symbol_ambiguous{};         // several differ
  bool symbol_undefined{};         // it is there, and only as an undefined symbol
};

// One per probe, in their order; addresses as in a linked file. ET_REL: no facts but the address.
// The pointers live as long as `file`.
[[nodiscard]] std::vector<SemaphoreFacts> read_semaphores(const ElfFile& file,
                                                          const ProbeFile& probes);

// Can no counter be there: in no segment, in code, or where no section describes it and nobody may
// write? Linkers leave 0 plus the counter's offset in .probes where they dropped that section: in
// the headers, or before every segment. A read-only section is somewhere: a debugger can raise a
// counter there; and so is what a linker script merged with code, which may be written. False where
// the note names no counter.
[[nodiscard]] bool points_nowhere(const SemaphoreFacts& facts);

// Does the file define any symbol NAME_semaphore of a counter's size, for whatever probe? Another
// module's counter that a copy relocation has brought here does not count.
[[nodiscard]] bool has_semaphore_symbol(const ElfFile& file);

// Such a symbol, with its name.
struct SemaphoreSymbol {
  std::string name;
  VirtAddr address;
};

// All of them, each address once.
[[nodiscard]] std::vector<SemaphoreSymbol> semaphore_symbols(const ElfFile& file);

}  // namespace reprobe
