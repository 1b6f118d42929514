// The stapsdt note codec. A note is an ELF note with the name "stapsdt\0", type 3 and the
// descriptor: location, base, semaphore (address-sized), provider, name, arguments (each
// NUL-terminated). Format: SystemTap sys/sdt.h 4.8; what each tracer accepts: docs/consumers.md.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

inline constexpr std::uint32_t NT_STAPSDT = 3;
inline constexpr std::string_view kStapsdtSection = ".note.stapsdt";
inline constexpr std::string_view kStapsdtOwner = "stapsdt";
inline constexpr std::string_view kBaseSection = ".stapsdt.base";
// Where a repair puts notes of other owners, out of libbpf's way.
inline constexpr std::string_view kForeignNotes = ".note.foreign";
// Counters, and the records of SystemTap up to 1.3.
inline constexpr std::string_view kProbesSection = ".probes";
// What a repair calls a loaded section of notes once its notes stand elsewhere. Its bytes stay: the
// program may find them by its own symbols, and the dynamic linker may write into them.
inline constexpr std::string_view kLoadedNotes = ".stapsdt.loaded";
// Begins the room for new code, where `reprobe sled` puts sites: a file that has it was given room
// before.
inline constexpr std::string_view kSledSection = ".text.reprobe";
// Of the words of data that sleds of the kind slot test.
inline constexpr std::string_view kSlotSection = ".reprobe.slots";

// Fields of one descriptor; what encode_note() turns into bytes.
struct NoteFields {
  VirtAddr location;   // of the site
  VirtAddr base;       // address of .stapsdt.base when the file was linked, or 0
  VirtAddr semaphore;  // address of the u16 counter, 0: none
  std::string provider;
  std::string name;
  std::string arguments;
};

struct Note : NoteFields {
  std::uint32_t section{};  // index of the section that holds the note
  std::uint64_t offset{};   // of the note header in that section
  FileOffset file_offset;   // of the note header in the file
  // Header + name + descriptor + padding, as it stands in the section, and a gap of zeros behind
  // it where there is one: the next note starts at offset + size.
  std::uint64_t size{};
  ByteView bytes;        // those bytes; the last note's may lack its padding
  std::uint64_t desc{};  // offset of the descriptor in `bytes`
  // ET_REL: the section that holds the site / the base / the counter, from the relocations; the
  // fields above are then offsets in it. 0 elsewhere, and where no relocation applies.
  std::uint32_t location_section{};
  std::uint32_t semaphore_section{};
  // ET_REL: the note's relocation against the location names no defined section (R_*_NONE or a
  // discarded symbol). A loaded note section: what the dynamic linker writes is not known here.
  bool location_unresolved{};
  // The bytes differ from what encode_note() gives for these fields (padding counted in descsz,
  // missing NUL, wrong alignment, type not 3): a finding says how, fix rewrites it.
  bool canonical{true};
  // ET_REL: the counter is another object's, or a common symbol; `semaphore` says nothing.
  bool semaphore_undefined{};
};

// A note in .note.stapsdt that is not a stapsdt probe: another owner's, or one with the owner
// "stapsdt" whose descriptor cannot be decoded.
struct ForeignNote {
  std::uint32_t section{};
  std::uint64_t offset{};
  std::uint64_t size{};
  FileOffset file_offset;
  std::string owner;
  std::uint32_t namesz{};
  std::uint32_t descsz{};
  std::uint32_t type{};
  ByteView bytes;
  std::uint64_t desc{};  // offset of the descriptor in `bytes`
};

struct NoteScan {
  std::vector<Note> notes;  // in file order
  std::vector<ForeignNote> foreign;
  std::vector<Finding> findings;  // rules note-*
  // Offset where the scan of a section had to stop before its end, by section index; the bytes
  // behind it could not be read as notes. Empty: everything was understood.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> stopped;
};

// Is it a section of probe notes? One that is marked as SHT_PROGBITS holds them too, though no
// tracer reads it.
[[nodiscard]] bool holds_notes(const Section& section);

// Reads every section of probe notes. The alignment that reads most notes is found
// out (4, then 8) rather than believed from sh_addralign. In ET_REL the relocations of the section
// are applied first. Never fails: what cannot be read is in `findings` (rules: notes/rules.hpp)
// and `stopped`.
[[nodiscard]] NoteScan scan_notes(const ElfFile& file);

// The notes that stand in sections of another name, as a linker script's `*(.note.*)` gathers them,
// where no tracer looks. Only of a linked file without a section .note.stapsdt; notes of other
// owners and what cannot be read are passed over.
[[nodiscard]] NoteScan scan_other_sections(const ElfFile& file);

// The canonical bytes of a note: namesz 8, type 3, descsz ending at the arguments' NUL, padded to
// 4. Errors: a field does not fit the class.
[[nodiscard]] Result<Bytes> encode_note(const NoteFields& fields, bool is64, std::endian order);

}  // namespace reprobe
