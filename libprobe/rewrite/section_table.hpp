// The section header table on its way into the output: fields are changed, sections added, renamed,
// exchanged and dropped here, and write() turns the result into edits. With a new section or a new
// name the table and the section names move to the end of the file; otherwise both stay.
//
// A section is named by its index in the input, an added one by the next free index, whatever its
// place in the output is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

enum class SectionField { type, flags, addr, offset, size, info, addralign };

class SectionTable {
 public:
  // `file` must outlive the table. Errors: unreadable (no section header table).
  [[nodiscard]] static Result<SectionTable> of(const ElfFile& file);

  // Errors: internal (the value does not fit the class).
  [[nodiscard]] Result<void> set(const Section& section, SectionField field, std::uint64_t value,
                                 std::string why);

  // Errors: refused (no readable section name table).
  [[nodiscard]] Result<void> rename(const Section& section, std::string_view name, std::string why);

  // Adds a header at the end of the table; gives its index. Errors: refused (numbering would need
  // section 0's fields, no readable section name table), internal.
  [[nodiscard]] Result<std::uint32_t> add(const Section& section, std::string why);

  // The same with contents, which stand at the end of the file: size and offset are filled in.
  // `why_there` is the plan's reason for the contents.
  [[nodiscard]] Result<std::uint32_t> append(Plan& plan, Section section, Bytes contents,
                                             std::string why_there, std::string why);

  // Exchanges the places of two headers; every sh_link, sh_info, e_shstrndx and st_shndx follows.
  // Errors: refused (a loaded symbol or a section group names one of them, or the numbers are not
  // in the fields themselves).
  [[nodiscard]] Result<void> exchange(std::uint32_t a, std::uint32_t b, std::string why);

  // Drops a header: the last one takes its place. Symbols of the section become those of `heir`.
  // Errors as exchange().
  [[nodiscard]] Result<void> drop(std::uint32_t section, std::uint32_t heir, std::string why);

  // Where the section's header will stand; 0 where it was dropped.
  [[nodiscard]] std::uint32_t place_of(std::uint32_t section) const;
  // Headers in the output.
  [[nodiscard]] std::size_t size() const { return order_.size(); }

  // Errors: internal; refused (the symbol table that must follow shares its bytes).
  [[nodiscard]] Result<void> write(Plan& plan) const;

 private:
  struct Change {
    std::string why;
    Bytes value;
  };

  explicit SectionTable(const ElfFile& file) : file_(&file) {}
  [[nodiscard]] Result<void> put(std::uint64_t at, unsigned width, std::uint64_t value,
                                 std::string why);
  [[nodiscard]] Result<void> read_names();
  [[nodiscard]] Result<std::uint64_t> add_name(std::string_view name);
  [[nodiscard]] Result<void> movable(std::uint32_t section) const;
  [[nodiscard]] bool reordered() const { return !reorder_why_.empty(); }
  // The index that stands for an input's index in the output.
  [[nodiscard]] std::uint64_t renumbered(std::uint64_t index) const;
  [[nodiscard]] Result<Bytes> output_table() const;
  [[nodiscard]] Result<void> write_fields(Plan& plan) const;
  [[nodiscard]] Result<void> write_headers(Plan& plan, const Bytes& table) const;
  [[nodiscard]] Result<void> write_symbols(Plan& plan) const;

  const ElfFile* file_;
  Bytes table_;                              // by index in the input, added headers behind
  Bytes names_;                              // contents of the section name table, once it grows
  std::map<std::uint64_t, Change> changes_;  // of existing headers, by offset in table_
  std::vector<std::uint32_t> order_;         // what stands at each place of the output
  std::map<std::uint32_t, std::uint32_t> moved_;  // index -> another place in the output
  std::map<std::uint32_t, std::uint32_t> heirs_;  // dropped -> who takes its symbols
  std::string added_why_;
  std::string reorder_why_;
};

}  // namespace reprobe
