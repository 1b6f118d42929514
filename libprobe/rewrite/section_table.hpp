// The section header table on its way into the output: fields are changed and sections added
// here, and write() turns the result into edits. As long as no section is added the table stays
// where it is; with a new one, table and section names move to the end of the file.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

enum class SectionField { flags, addr, offset, size, addralign };

class SectionTable {
 public:
  // `file` must outlive the table. Errors: unreadable (no section header table).
  [[nodiscard]] static Result<SectionTable> of(const ElfFile& file);

  // Errors: internal (the value does not fit the class).
  [[nodiscard]] Result<void> set(const Section& section, SectionField field, std::uint64_t value,
                                 std::string why);

  // Adds a header at the end of the table. Errors: refused (numbering would need section 0's
  // fields, no readable section name table), internal.
  [[nodiscard]] Result<void> add(const Section& section, std::string why);

  // Errors: internal.
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
  [[nodiscard]] Result<void> write_moved(Plan& plan) const;

  const ElfFile* file_;
  Bytes table_;                              // with the added headers
  Bytes names_;                              // contents of the section name table, grown by add()
  std::map<std::uint64_t, Change> changes_;  // of existing headers, by offset in the table
  std::string added_why_;
};

}  // namespace reprobe
