// The files mapped into this process. Apart from the tests because <link.h> defines ELF's names as
// macros.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reprobe::test {

struct MappedFile {
  std::string path;
  std::uintptr_t bias{};  // address in memory minus address in the file
};

// The test itself, libstdc++, libc, ..., and the kernel's vDSO, which is no file.
std::vector<MappedFile> mapped_files();

// Start of the exported function that holds the address in memory, as dladdr() says; nothing where
// it knows none.
std::optional<std::uintptr_t> exported_symbol_at(std::uintptr_t address);

}  // namespace reprobe::test
